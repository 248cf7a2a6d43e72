"""TFLite models of a few operators as float ONNX models.

Images keep TFLite's order of axes, NHWC, at inputs; windows are padded as TFLite pads them.  int8
weights become the float32 numbers they stand for.  Needs ``pip install tflite``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tflite
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

OPSET, IR_VERSION = 17, 8
DTYPES = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.INT32: np.int32,
    tflite.TensorType.INT8: np.int8,
}
NAMES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if name.isupper()}
TO_IMAGE, FROM_IMAGE = [0, 3, 1, 2], [0, 2, 3, 1]


class UnsupportedModelError(ValueError):
    """A TFLite model with something that has no rule here."""


def converted(data: bytes) -> onnx.ModelProto:
    """The ONNX model of a float TFLite model.  Raises ``UnsupportedModelError``."""
    model = tflite.Model.GetRootAsModel(data, 0)
    return Converter(model, model.Subgraphs(0)).model()


@dataclass
class Converter:
    """Nodes and weights of the ONNX model; tensors of rank 4 are NCHW in it."""

    source: Any
    graph: Any
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The model, with the names of TFLite's inputs and outputs, and their shapes."""
        inputs = [self.port(i) for i in self.graph.InputsAsNumpy()]
        for index in self.graph.InputsAsNumpy():
            self.reordered(self.name(index), self.image(index), index, TO_IMAGE)
        for index in range(self.graph.OperatorsLength()):
            self.convert(self.graph.Operators(index))
        for index in self.graph.OutputsAsNumpy():
            self.reordered(self.image(index), self.name(index), index, FROM_IMAGE)
        outputs = [self.port(i) for i in self.graph.OutputsAsNumpy()]
        values = self.weights.values()
        graph = helper.make_graph(self.nodes, "tflite", inputs, outputs, list(values))
        opsets = [helper.make_opsetid("", OPSET)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def convert(self, operator: Any) -> None:
        """Append the nodes of an operator."""
        code = self.source.OperatorCodes(operator.OpcodeIndex())
        kind = NAMES[code.BuiltinCode()]
        if kind not in RULES:
            raise UnsupportedModelError(f"{kind} has no rule; there are {', '.join(RULES)}")
        inputs = [int(i) for i in operator.InputsAsNumpy()]
        (output,) = operator.OutputsAsNumpy()
        RULES[kind](self, operator.BuiltinOptions(), inputs, int(output))

    # -- tensors

    def name(self, index: int) -> str:
        """TFLite's name of a tensor."""
        return str(self.graph.Tensors(index).Name().decode())

    def shape(self, index: int) -> list[int]:
        tensor = self.graph.Tensors(index)
        return [int(size) for size in tensor.ShapeAsNumpy()] if tensor.ShapeLength() else []

    def image(self, index: int) -> str:
        """The name of a tensor inside of the ONNX model: NCHW for those of rank 4."""
        return f"{self.name(index)}:NCHW" if len(self.shape(index)) == 4 else self.name(index)

    def port(self, index: int) -> onnx.ValueInfoProto:
        shape = self.shape(index)
        return helper.make_tensor_value_info(self.name(index), TensorProto.FLOAT, shape)

    def value(self, index: int) -> Array:
        """A constant; float32 for quantized ones."""
        tensor = self.graph.Tensors(index)
        raw = self.source.Buffers(tensor.Buffer()).DataAsNumpy()
        stored = np.frombuffer(raw.tobytes(), DTYPES[tensor.Type()]).reshape(self.shape(index))
        quant = tensor.Quantization()
        if stored.dtype != np.int8 or not quant.ScaleLength():
            return stored
        axes = [1] * stored.ndim
        axes[quant.QuantizedDimension()] = -1
        scale, zero = (v.reshape(axes) for v in (quant.ScaleAsNumpy(), quant.ZeroPointAsNumpy()))
        return np.asarray((stored.astype(np.float32) - zero) * scale, np.float32)

    def constant(self, name: str, value: Array) -> str:
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    # -- nodes

    def op(self, kind: str, operands: Sequence[str], output: str, **attributes: Any) -> None:
        """Append a node, named for its output."""
        node = helper.make_node(kind, operands, [output], name=output, **attributes)
        self.nodes.append(node)

    def reordered(self, inputs: str, expected: str, index: int, perm: list[int]) -> None:
        """A tensor of rank 4 with its axes in another order; others have one name only."""
        if len(self.shape(index)) == 4:
            self.op("Transpose", [inputs], expected, perm=perm)

    def activated(
        self, kind: str, operands: list[str], output: int, clip: int, **more: Any
    ) -> None:
        """A node and the activation fused with it."""
        function = tflite.ActivationFunctionType
        name = self.image(output)
        if clip == function.NONE:
            self.op(kind, operands, name, **more)
            return
        if clip not in (function.RELU, function.RELU6):
            raise UnsupportedModelError(f"activation {clip} of {name} has no rule")
        self.op(kind, operands, f"{name}:linear", **more)
        if clip == function.RELU:
            self.op("Relu", [f"{name}:linear"], name)
            return
        ends = [self.constant(f"{end}", np.array(end, np.float32)) for end in (0, 6)]
        self.op("Clip", [f"{name}:linear", *ends], name)

    def window(self, options: Any, index: int, kernel: tuple[int, int]) -> dict[str, Any]:
        """Strides, dilations and pads of windows over a tensor."""
        strides = [options.StrideH(), options.StrideW()]
        pads = [0, 0, 0, 0]
        if options.Padding() == tflite.Padding.SAME:
            sizes = zip(self.shape(index)[1:3], kernel, strides, strict=True)
            both = [max((-(-size // step) - 1) * step + k - size, 0) for size, k, step in sizes]
            pads = [n // 2 for n in both] + [n - n // 2 for n in both]
        return {"strides": strides, "pads": pads}

    def conv(self, options: Any, inputs: list[int], output: int, weights: Array) -> None:
        """A convolution with ``weights``, [output channels, channels of a group, height, width]."""
        if (options.DilationHFactor(), options.DilationWFactor()) != (1, 1):
            raise UnsupportedModelError(f"dilations of {self.name(output)} have no rule")
        x, w, bias = inputs
        height, width = weights.shape[2:]
        attributes = self.window(options, x, (height, width))
        group = self.shape(x)[3] // weights.shape[1]
        operands = [
            self.image(x),
            self.constant(self.name(w), weights),
            self.constant(self.name(bias), self.value(bias)),
        ]
        clip = options.FusedActivationFunction()
        kernel = {"kernel_shape": [height, width], "group": group}
        self.activated("Conv", operands, output, clip, **attributes, **kernel)


Rule = Callable[[Converter, Any, list[int], int], None]


def options_of(kind: Any, table: Any) -> Any:
    """The options of an operator, of their own class."""
    actual = kind()
    actual.Init(table.Bytes, table.Pos)
    return actual


def convolution(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """CONV_2D: weights are [outputs, height, width, inputs]."""
    options = options_of(tflite.Conv2DOptions, table)
    built.conv(options, inputs, output, built.value(inputs[1]).transpose(0, 3, 1, 2))


def depthwise(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """DEPTHWISE_CONV_2D: weights are [1, height, width, outputs]."""
    options = options_of(tflite.DepthwiseConv2DOptions, table)
    built.conv(options, inputs, output, built.value(inputs[1]).transpose(3, 0, 1, 2))


def fully_connected(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """FULLY_CONNECTED of rows: weights are [outputs, inputs]."""
    options = options_of(tflite.FullyConnectedOptions, table)
    x, w, bias = inputs
    operands = [built.image(x), *(built.constant(built.name(i), built.value(i)) for i in (w, bias))]
    built.activated("Gemm", operands, output, options.FusedActivationFunction(), transB=1)


def addition(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """ADD of two results."""
    options = options_of(tflite.AddOptions, table)
    operands = [built.image(i) for i in inputs]
    built.activated("Add", operands, output, options.FusedActivationFunction())


def mean_of_windows(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """AVERAGE_POOL_2D; the mean of each channel where the window is the image."""
    options = options_of(tflite.Pool2DOptions, table)
    (x,), clip = inputs, options.FusedActivationFunction()
    kernel = options.FilterHeight(), options.FilterWidth()
    if list(kernel) == built.shape(x)[1:3] and options.Padding() == tflite.Padding.VALID:
        built.activated("GlobalAveragePool", [built.image(x)], output, clip)
        return
    window = built.window(options, x, kernel)
    built.activated("AveragePool", [built.image(x)], output, clip, kernel_shape=kernel, **window)


def reshape(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """RESHAPE of NHWC; an image of one pixel is its channels in any order of axes."""
    x, shape = inputs[0], built.shape(output)
    source = built.image(x)
    if len(built.shape(x)) == 4 and built.shape(x)[1:3] != [1, 1]:
        source = built.name(x)
        built.reordered(built.image(x), source, x, FROM_IMAGE)
    if len(shape) == 4:
        raise UnsupportedModelError(f"{built.name(output)} is reshaped to an image")
    target = built.constant(f"{built.name(output)}:shape", np.array(shape, np.int64))
    built.op("Reshape", [source, target], built.image(output))


def softmax(built: Converter, table: Any, inputs: list[int], output: int) -> None:
    """SOFTMAX over the last axis of rows."""
    options = options_of(tflite.SoftmaxOptions, table)
    if options.Beta() != 1 or len(built.shape(output)) != 2:
        raise UnsupportedModelError(f"{built.name(output)} is no plain softmax of rows")
    built.op("Softmax", [built.image(inputs[0])], built.image(output), axis=-1)


RULES: dict[str, Rule] = {
    "ADD": addition,
    "AVERAGE_POOL_2D": mean_of_windows,
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": depthwise,
    "FULLY_CONNECTED": fully_connected,
    "RESHAPE": reshape,
    "SOFTMAX": softmax,
}
"""By TFLite's name of an operator."""
