"""Networks of 20 to 160 kB with fixed or free shapes, to compare sizes of saved int8 models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.generators.onnx_models.free_models import Model

Made = tuple[onnx.ModelProto, Sequence[tuple[int, ...]]]
"""A model with one input, and shapes that it is calibrated with."""

FRAME, BANDS = 256, 40
GATES = {"GRU": 3, "LSTM": 4}


def recurrence(kind: str, is_free: bool, directions: int = 1, hidden: int = 32) -> Made:
    """A layer of 12 steps, forwards or both ways, and a product."""
    steps, width = 12, 24
    model = Model(1, {"x": ("L" if is_free else steps, 1, width)})
    rows = GATES[kind] * hidden
    weights = (model.normal(directions, rows, size) for size in (width, hidden))
    bias = model.constant(0.1 * model.rng.standard_normal((directions, 2 * rows)))
    options = {"direction": "bidirectional"} if directions == 2 else {}
    x = model.op(kind, "x", *weights, bias, hidden_size=hidden, **options)
    x = model.op("Transpose", x, perm=[0, 2, 1, 3])
    x = model.op("Reshape", x, model.constant([0, 0, directions * hidden], np.int64))
    y = model.op("MatMul", x, model.normal(directions * hidden, 16))
    others = [(steps - 3, 1, width)] if is_free else []
    return model.proto(y, ("L" if is_free else steps, 1, 16)), [(steps, 1, width), *others]


def convolutions(is_free: bool) -> Made:
    """Three convolutions and depthwise ones, each with a normalization, and a classifier."""
    model = Model(1, {"x": ("N", 3, "H", "W") if is_free else (1, 3, 16, 16)})

    def normalized(x: str, channels: int) -> str:
        rng = model.rng
        scale, variance = (rng.uniform(0.3, 3, channels) for _ in range(2))
        bias, mean = rng.standard_normal((2, channels))
        parameters = map(model.constant, (scale, bias, mean, variance))
        return model.op("BatchNormalization", x, *parameters)

    x, channels = "x", 3
    for wide in (16, 32, 32):
        x = model.op("Conv", x, model.normal(wide, channels, 3, 3), pads=[1] * 4)
        x, channels = model.op("Relu", normalized(x, wide)), wide
        x = model.op("Conv", x, model.normal(wide, 1, 3, 3), pads=[1] * 4, group=wide)
        x = model.op("HardSwish", normalized(x, wide))
    flat = model.op("Flatten", model.op("GlobalAveragePool", x))
    y = model.op("Gemm", flat, model.normal(channels, 10), model.constant(np.zeros(10)))
    others = [(1, 3, 12, 20)] if is_free else []
    return model.proto(y, ("N" if is_free else 1, 10)), [(1, 3, 16, 16), *others]


def transformer(is_free: bool, width: int = 48, heads: int = 4, words: int = 10) -> Made:
    """Two blocks of attention and Gelu with normalizations before them."""
    model = Model(2, {"x": ("N", "T", width) if is_free else (1, words, width)})

    def linear(x: str, given: int, made: int) -> str:
        bias = model.constant(0.1 * model.rng.standard_normal(made))
        return model.op("Add", model.op("MatMul", x, model.normal(given, made)), bias)

    def normalized(x: str) -> str:
        gamma = model.constant(10 ** model.rng.uniform(-1, 1, width))
        beta = model.constant(0.1 * model.rng.standard_normal(width))
        return model.op("LayerNormalization", x, gamma, beta)

    def attention(x: str) -> str:
        split = model.constant([0, 0, heads, width // heads], np.int64)
        q, k, v = (
            model.op("Transpose", model.op("Reshape", linear(x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = model.op("Mul", model.op("MatMul", q, k), model.constant(0.3))
        mixed = model.op("MatMul", model.op("Softmax", scores, axis=-1), v)
        rows = model.op("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = model.op("Reshape", rows, model.constant([0, 0, width], np.int64))
        return linear(merged, width, width)

    x = "x"
    for _ in range(2):
        x = model.op("Add", x, attention(normalized(x)))
        wide = model.op("Gelu", linear(normalized(x), width, 2 * width))
        x = model.op("Add", x, linear(wide, 2 * width, width))
    y = linear(normalized(x), width, 24)
    others = [(1, words - 3, width)] if is_free else []
    dims = ("N", "T", 24) if is_free else (1, words, 24)
    return model.proto(y, dims), [(1, words, width), *others]


def spectrum(is_free: bool, samples: int = 2048) -> Made:
    """A spectrogram in logarithms, by STFT, and two convolutions."""
    model = Model(3, {"x": (1, "L" if is_free else samples)})
    window = model.constant(np.hanning(FRAME + 1)[:-1])
    x = model.op("STFT", "x", model.constant(FRAME // 2, np.int64), window, onesided=1)
    axis = model.constant([3], np.int64)
    power = model.op("ReduceSum", model.op("Mul", x, x), axis, keepdims=0)
    places = np.linspace(0, BANDS, FRAME // 2 + 1)[:, None] - np.arange(BANDS) - 0.5
    bands = model.op("MatMul", power, model.constant(np.maximum(0, 1 - np.abs(places))))
    x = model.op("Log", model.op("Add", bands, model.constant(1e-4)))
    x = model.op("Transpose", x, perm=[0, 2, 1])
    for made, given in ((64, BANDS), (32, 64)):
        weights = model.constant(model.rng.standard_normal((made, given, 3)) / 12)
        x = model.op("Relu", model.op("Conv", x, weights, pads=[1, 1]))
    y = model.op("ReduceMean", x, model.constant([2], np.int64), keepdims=0)
    others = [(1, samples + FRAME)] if is_free else []
    return model.proto(y, (1, 32)), [(1, samples), *others]


FAMILIES: dict[str, Callable[[bool], Made]] = {
    "GRU": lambda is_free: recurrence("GRU", is_free),
    "LSTM": lambda is_free: recurrence("LSTM", is_free),
    "LSTM both ways": lambda is_free: recurrence("LSTM", is_free, directions=2),
    "convolutions": convolutions,
    "transformer": transformer,
    "spectrum": spectrum,
}


def in_float16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float16 in place of float32."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    for tensor in found.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*found.graph.input, *found.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return found
