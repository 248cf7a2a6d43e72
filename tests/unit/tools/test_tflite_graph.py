"""TFLite models become ONNX models that compute the same."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
import onnxruntime
import pytest
import tflite
from numpy.typing import NDArray

from tools.downloads.tflite_graph import UnsupportedModelError, converted

Array = NDArray[Any]
RELU = tflite.ActivationFunctionType.RELU
CONV, GELU = tflite.BuiltinOperator.CONV_2D, tflite.BuiltinOperator.GELU


def table(builder: flatbuffers.Builder, kind: str, **values: Any) -> int:
    """A table of flatbuffers: scalars, and offsets of what is there already."""
    getattr(tflite, f"{kind}Start")(builder)
    for name, value in values.items():
        getattr(tflite, f"{kind}Add{name}")(builder, value)
    return int(getattr(tflite, f"{kind}End")(builder))


def words(builder: flatbuffers.Builder, values: list[int]) -> int:
    return int(builder.CreateNumpyVector(np.array(values, np.int32)))


def offsets(builder: flatbuffers.Builder, values: list[int]) -> int:
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependUOffsetTRelative(value)
    return int(builder.EndVector())


def one_convolution(
    weights: Array, bias: Array, operator: int = CONV, scale: list[float] | None = None
) -> bytes:
    """A TFLite model: a 5 x 4 image of two channels, strides 2, padding SAME, and a Relu."""
    b = flatbuffers.Builder(0)
    buffers = [table(b, "Buffer")]
    for value in (weights, bias):
        data = b.CreateNumpyVector(np.frombuffer(value.tobytes(), np.uint8))
        buffers.append(table(b, "Buffer", Data=data))
    quant = {}
    if scale is not None:
        scales = b.CreateNumpyVector(np.array(scale, np.float32))
        zeros = b.CreateNumpyVector(np.zeros(len(scale), np.int64))
        quant["Quantization"] = table(b, "QuantizationParameters", Scale=scales, ZeroPoint=zeros)
    kind = tflite.TensorType.FLOAT32 if scale is None else tflite.TensorType.INT8
    tensors = []
    for name, shape, buffer, more in (
        ("x", [1, 5, 4, 2], 0, {}),
        ("w", list(weights.shape), 1, {"Type": kind, **quant}),
        ("b", list(bias.shape), 2, {}),
        ("y", [1, 3, 2, weights.shape[0]], 0, {}),
    ):
        parts = {"Shape": words(b, shape), "Name": b.CreateString(name)}
        tensors.append(table(b, "Tensor", **parts, Buffer=buffer, **more))
    fused = {"StrideH": 2, "StrideW": 2, "FusedActivationFunction": RELU}
    fused |= {"DilationHFactor": 1, "DilationWFactor": 1}
    options = table(b, "Conv2DOptions", Padding=tflite.Padding.SAME, **fused)
    ends = {"Inputs": words(b, [0, 1, 2]), "Outputs": words(b, [3])}
    node = table(b, "Operator", OpcodeIndex=0, **ends, BuiltinOptions=options)
    ports = {"Inputs": words(b, [0]), "Outputs": words(b, [3])}
    graph = table(b, "SubGraph", **ports, Tensors=offsets(b, tensors), Operators=offsets(b, [node]))
    parts = {"Buffers": offsets(b, buffers), "Subgraphs": offsets(b, [graph])}
    numbers = {"DeprecatedBuiltinCode": min(operator, 127), "BuiltinCode": operator}
    codes = offsets(b, [table(b, "OperatorCode", **numbers)])
    b.Finish(table(b, "Model", **parts, OperatorCodes=codes), b"TFL3")
    return bytes(b.Output())


def expected(x: Array, weights: Array, bias: Array) -> Array:
    """The convolution with 3 x 3 windows: one row above, one below, one column on the right."""
    padded = np.pad(x, ((0, 0), (1, 1), (0, 1), (0, 0)))
    array = np.zeros((1, 3, 2, len(weights)))
    for row in range(3):
        for column in range(2):
            window = padded[0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            array[0, row, column] = np.tensordot(weights, window, 3) + bias
    return np.maximum(array, 0)


def result(data: bytes, x: Array) -> Array:
    model = converted(data).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def draw(seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    shapes = (1, 5, 4, 2), (3, 3, 3, 2), (3,)
    x, weights, bias = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, weights, bias


def test_convolutions_are_padded_as_tflite_pads_them() -> None:
    x, weights, bias = draw(1)
    actual = result(one_convolution(weights, bias), x)
    np.testing.assert_allclose(actual, expected(x, weights, bias), atol=1e-5)


def test_int8_weights_become_the_numbers_they_stand_for() -> None:
    x, weights, bias = draw(2)
    scale = np.array([0.02, 0.03, 0.04], np.float32)
    steps = np.rint(weights / scale[:, None, None, None]).clip(-127, 127).astype(np.int8)
    actual = result(one_convolution(steps, bias, scale=scale.tolist()), x)
    real = steps * scale[:, None, None, None]
    np.testing.assert_allclose(actual, expected(x, real, bias), atol=1e-5)


def test_operators_without_a_rule_are_named() -> None:
    _, weights, bias = draw(3)
    with pytest.raises(UnsupportedModelError, match="GELU has no rule"):
        converted(one_convolution(weights, bias, operator=GELU))
