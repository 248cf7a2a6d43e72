"""A rule for each TFLite operator: its nodes in ONNX."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import tflite
from onnx import TensorProto

from quantglow.importer.tflite.files import (
    TO_NCHW,
    TO_NHWC,
    Operator,
    TableWriter,
    TfliteFile,
    UnsupportedError,
)
from quantglow.support.errors import ConversionError

Rule = Callable[[TableWriter, Operator], None]

RULES: dict[str, Rule] = {}
"""By TFLite's name of an operator."""

DAMAGES = (
    struct.error, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip
"""Errors to which the numbers of a damaged file lead."""


def convert(data: bytes, origin: str) -> Any:
    """The ``ModelProto`` of a TFLite file.  Raises ``ConversionError``."""
    try:
        return write(TfliteFile.of(data))
    except UnsupportedError as error:
        raise ConversionError(
            f"{origin}: {error}. Remedy: convert the model that it was made of to ONNX."
        ) from None
    except DAMAGES as error:
        raise ConversionError(
            f"{origin}: is no TFLite file, or damaged: {error}. Remedy: convert or copy it again."
        ) from None


def write(file: TfliteFile) -> Any:
    """The ``ModelProto`` of a graph.  Raises ``UnsupportedError`` with all operators that have no
    rule."""
    if missing := sorted({o.kind for o in file.operators if o.kind not in RULES}):
        raise UnsupportedError(f"no rule for the operators {', '.join(missing)}")
    writer = TableWriter(file)
    for operator in file.operators:
        RULES[operator.kind](writer, operator)
    return writer.model()


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Registers the rule of some operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


# -- windows


def windows(options: Any, size: tuple[int, ...], kernel: tuple[int, ...], dilations: Any) -> Any:
    """Attributes of windows over an image [1, height, width, channels]."""
    strides = [options.StrideH(), options.StrideW()]
    pads = [0, 0, 0, 0]
    if options.Padding() == tflite.Padding.SAME:
        both = [
            max((-(-n // step) - 1) * step + (k - 1) * dilation + 1 - n, 0)
            for n, step, k, dilation in zip(size[1:3], strides, kernel, dilations, strict=True)
        ]
        pads = [n // 2 for n in both] + [n - n // 2 for n in both]
    return {"kernel_shape": list(kernel), "strides": strides, "pads": pads}


def _on_image(
    writer: TableWriter,
    operator: Operator,
    kind: str,
    operands: list[str],
    activation: int,
    **more: Any,
) -> None:
    """An operator of NCHW in a model of NHWC."""
    name = writer.begun(operator.outputs[0])
    image = writer.node("Transpose", [writer.real(operator.inputs[0])], f"{name}:in", perm=TO_NCHW)
    result = writer.node(kind, [image, *operands], f"{name}:out", **more)
    back = writer.node("Transpose", [result], f"{name}:linear", perm=TO_NHWC)
    writer.activated(operator.outputs[0], back, activation)


def _convolve(writer: TableWriter, operator: Operator, options: Any, perm: list[int]) -> None:
    """A convolution with weights whose axes in the order ``perm`` are those of ONNX."""
    x, w, *bias = operator.inputs
    shape = [writer.value(w).shape[axis] for axis in perm]
    size = writer.file.tensors[x].shape
    dilations = [options.DilationHFactor(), options.DilationWFactor()]
    operands = [writer.weights(w, perm), *(writer.real(b) for b in bias if b >= 0)]
    window = windows(options, size, tuple(shape[2:]), dilations)
    more = {**window, "dilations": dilations, "group": size[3] // shape[1]}
    activation = options.FusedActivationFunction()
    _on_image(writer, operator, "Conv", operands, activation, **more)


@rule("CONV_2D")
def convolution(writer: TableWriter, operator: Operator) -> None:
    """Weights are [outputs, height, width, inputs of a group]."""
    _convolve(writer, operator, operator.options("Conv2DOptions"), [0, 3, 1, 2])


@rule("DEPTHWISE_CONV_2D")
def depthwise(writer: TableWriter, operator: Operator) -> None:
    """Weights are [1, height, width, outputs]."""
    _convolve(writer, operator, operator.options("DepthwiseConv2DOptions"), [3, 0, 1, 2])


@rule("AVERAGE_POOL_2D", "MAX_POOL_2D")
def pool(writer: TableWriter, operator: Operator) -> None:
    """Padding takes no part."""
    options = operator.options("Pool2DOptions")
    size = writer.file.tensors[operator.inputs[0]].shape
    kernel = options.FilterHeight(), options.FilterWidth()
    kind = "MaxPool" if operator.kind.startswith("MAX") else "AveragePool"
    window = windows(options, size, kernel, (1, 1))
    _on_image(writer, operator, kind, [], options.FusedActivationFunction(), **window)


# -- products


@rule("FULLY_CONNECTED")
def fully_connected(writer: TableWriter, operator: Operator) -> None:
    """Weights are [outputs, inputs]; rows are all axes but the last."""
    options = operator.options("FullyConnectedOptions")
    if options.WeightsFormat():
        raise UnsupportedError("weights of FULLY_CONNECTED in a shuffled format")
    (x, w, *bias), (output,) = operator.inputs, operator.outputs
    name = writer.begun(output)
    rows = _write_reshape(writer, writer.real(x), f"{name}:rows", [-1, writer.value(w).shape[1]])
    operands = [rows, writer.weights(w, [0, 1]), *(writer.real(b) for b in bias if b >= 0)]
    product = writer.node("Gemm", operands, f"{name}:product", transB=1)
    product = writer.clip(output, product, options.FusedActivationFunction())
    writer.result(output, "Reshape", [product, result_name(writer, output)])


def _write_reshape(writer: TableWriter, value: str, name: str, shape: list[int]) -> str:
    """A value in another shape; -1 is the rest."""
    target = writer.constant(f"{name}:shape", np.array(shape, np.int64))
    return writer.node("Reshape", [value, target], name)


def result_name(writer: TableWriter, index: int) -> str:
    """A constant, the shape of a result; its batch is the rest where it is free."""
    tensor = writer.file.tensors[index]
    shape = [-1, *tensor.shape[1:]] if tensor.dims[:1] == (-1,) else tensor.shape
    return writer.constant(f"{tensor.name}:shape", np.array(shape, np.int64))


# -- element by element


ARITHMETIC = {
    "ADD": ("Add", "AddOptions"),
    "SUB": ("Sub", "SubOptions"),
    "MUL": ("Mul", "MulOptions"),
}


@rule(*ARITHMETIC)
def arithmetic(writer: TableWriter, operator: Operator) -> None:
    """Two operands, and a fused activation."""
    kind, options = ARITHMETIC[operator.kind]
    (output,) = operator.outputs
    operands = [writer.real(i) for i in operator.inputs]
    linear = writer.node(kind, operands, f"{writer.begun(output)}:linear")
    writer.activated(output, linear, operator.options(options).FusedActivationFunction())


FUNCTIONS = {
    "HARD_SWISH": "HardSwish",
    "LOGISTIC": "Sigmoid",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "RELU": "Relu",
    "TANH": "Tanh",
}


@rule(*FUNCTIONS)
def function(writer: TableWriter, operator: Operator) -> None:
    """An operator that ONNX has, too."""
    operands = [writer.real(i) for i in operator.inputs]
    writer.result(operator.outputs[0], FUNCTIONS[operator.kind], operands)


@rule("RELU6")
def relu6(writer: TableWriter, operator: Operator) -> None:
    """``min(max(x, 0), 6)``."""
    x = writer.real(operator.inputs[0])
    writer.activated(operator.outputs[0], x, tflite.ActivationFunctionType.RELU6)


@rule("LEAKY_RELU")
def leaky_relu(writer: TableWriter, operator: Operator) -> None:
    """``x``, negative numbers times ``alpha``."""
    alpha = operator.options("LeakyReluOptions").Alpha()
    x = writer.real(operator.inputs[0])
    writer.result(operator.outputs[0], "LeakyRelu", [x], alpha=alpha)


@rule("SOFTMAX")
def softmax(writer: TableWriter, operator: Operator) -> None:
    """Softmax of ``beta * x`` over the last axis."""
    (output,), x = operator.outputs, writer.real(operator.inputs[0])
    beta = operator.options("SoftmaxOptions").Beta()
    if beta != 1:
        name = writer.begun(output)
        x = writer.node(
            "Mul", [x, writer.constant(f"{name}:beta", np.float32(beta))], f"{name}:scaled"
        )
    writer.result(output, "Softmax", [x], axis=-1)


@rule("QUANTIZE")
def quantize(writer: TableWriter, operator: Operator) -> None:
    """Real numbers, or integers with other parameters, to integers."""
    writer.result(operator.outputs[0], "Identity", [writer.real(operator.inputs[0])])


@rule("DEQUANTIZE")
def dequantize(writer: TableWriter, operator: Operator) -> None:
    """Integers, or float16, to float32."""
    real = writer.real(operator.inputs[0])
    writer.result(operator.outputs[0], "Cast", [real], to=TensorProto.FLOAT)


# -- shapes


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(writer: TableWriter, operator: Operator) -> None:
    """The shape is that of the result."""
    (output,) = operator.outputs
    operands = [writer.real(operator.inputs[0]), result_name(writer, output)]
    writer.result(output, "Reshape", operands)


@rule("TRANSPOSE")
def transpose(writer: TableWriter, operator: Operator) -> None:
    """Axes in a constant order."""
    x, perm = operator.inputs
    order = [int(axis) for axis in writer.value(perm)]
    writer.result(operator.outputs[0], "Transpose", [writer.real(x)], perm=order)


@rule("PAD", "PADV2")
def pad(writer: TableWriter, operator: Operator) -> None:
    """Padding is 0, or a constant."""
    (x, ends, *value), (output,) = operator.inputs, operator.outputs
    pads = np.asarray(writer.value(ends), np.int64).transpose().reshape(-1)
    operands = [writer.real(x), writer.constant(f"{writer.begun(output)}:pads", pads)]
    writer.result(output, "Pad", [*operands, *(writer.real(v) for v in value)])


@rule("CONCATENATION")
def concatenation(writer: TableWriter, operator: Operator) -> None:
    """Operands one after the other along an axis."""
    options = operator.options("ConcatenationOptions")
    (output,) = operator.outputs
    operands = [writer.real(i) for i in operator.inputs]
    name = f"{writer.begun(output)}:linear"
    joined = writer.node("Concat", operands, name, axis=options.Axis())
    writer.activated(output, joined, options.FusedActivationFunction())


@rule("MEAN")
def mean(writer: TableWriter, operator: Operator) -> None:
    """The mean over constant axes."""
    (x, axes), (output,) = operator.inputs, operator.outputs
    over = np.asarray(writer.value(axes), np.int64).reshape(-1)
    operands = [writer.real(x), writer.constant(f"{writer.begun(output)}:axes", over)]
    keepdims = int(operator.options("ReducerOptions").KeepDims())
    writer.result(output, "ReduceMean", operands, keepdims=keepdims)
