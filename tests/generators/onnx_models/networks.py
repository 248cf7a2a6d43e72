"""Networks of 20 to 160 kB with fixed or free shapes, one of each family."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.generators.onnx_models.drawing import Value
from tests.generators.onnx_models.network_drawing import Network, NetworkDrawing, drawing
from tests.generators.onnx_models.transformers import Transformer

FRAME, BANDS = 256, 40
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def recurrence(kind: str, is_free: bool, directions: int = 1, hidden: int = 32) -> Network:
    """A layer of 12 steps, forwards or both ways, and a product."""
    steps, width, d = 12, 24, drawing(1)
    x = d.free_input((steps, 1, width), ("L" if is_free else steps, 1, width))
    rows = GATES[kind] * hidden
    weights = [d.filters(directions, rows, size) for size in (width, hidden)]
    options = {"direction": "bidirectional"} if directions == 2 else {}
    y = d.inner(kind, x, *weights, d.small(directions, 2 * rows), hidden_size=hidden, **options)
    y = d.inner("Transpose", y, perm=[0, 2, 1, 3])
    y = d.inner("Reshape", y, shape=[0, 0, directions * hidden])
    y = d.inner("MatMul", y, d.filters(directions * hidden, 16))
    shapes = [(steps, 1, width), (steps - 3, 1, width)][: 1 + is_free]
    proto = d.proto(y, ("L" if is_free else steps, 1, 16))
    return Network(proto, tuple((shape,) for shape in shapes))


def normalized(d: NetworkDrawing, x: Value) -> Value:
    """A BatchNormalization of an image."""
    channels = x.shape[1]
    scale, variance = (d.uniform(0.3, 3, channels) for _ in range(2))
    return d.inner("BatchNormalization", x, scale, d.normal(channels), d.normal(channels), variance)


def convolutions(is_free: bool) -> Network:
    """Three convolutions and depthwise ones, each with a normalization, and a classifier."""
    d = drawing(1)
    x = d.free_input((1, 3, 16, 16), ("N", 3, "H", "W") if is_free else (1, 3, 16, 16))
    for wide in (16, 32, 32):
        x = d.inner("Conv", x, d.filters(wide, x.shape[1], 3, 3), pads=[1] * 4)
        x = d.inner("Relu", normalized(d, x))
        x = d.inner("Conv", x, d.filters(wide, 1, 3, 3), pads=[1] * 4, group=wide)
        x = d.inner("HardSwish", normalized(d, x))
    proto = d.proto(d.classifier(x, 10), ("N" if is_free else 1, 10))
    return Network(proto, (((1, 3, 16, 16),), ((1, 3, 12, 20),))[: 1 + is_free])


def transformer(is_free: bool, width: int = 48, words: int = 10) -> Network:
    """Two blocks of attention and Gelu with normalizations before them."""
    d = drawing(2)
    x = d.free_input((1, words, width), ("N", "T", width) if is_free else (1, words, width))
    y = Transformer(d, x, heads=4).result(2, 24)
    proto = d.proto(y, ("N", "T", 24) if is_free else (1, words, 24))
    return Network(proto, (((1, words, width),), ((1, words - 3, width),))[: 1 + is_free])


def spectrum(is_free: bool, samples: int = 2048) -> Network:
    """A spectrogram in logarithms, by STFT, and two convolutions."""
    d = drawing(3)
    x = d.free_input((1, samples), (1, "L" if is_free else samples))
    window = d.constant(np.hanning(FRAME + 1)[:-1].astype(np.float32))
    step = d.constant(np.int64(FRAME // 2))
    shape = (1, 1 + (samples - FRAME) // (FRAME // 2), FRAME // 2 + 1, 2)
    x = d.shaped(shape, "STFT", x, step, window, onesided=1)
    power = d.inner("ReduceSum", d.inner("Mul", x, x), axes=[3], keepdims=0)
    places = np.linspace(0, BANDS, FRAME // 2 + 1)[:, None] - np.arange(BANDS) - 0.5
    triangles = np.maximum(0, 1 - np.abs(places)).astype(np.float32)
    bands = d.inner("MatMul", power, d.constant(triangles))
    x = d.inner("Log", d.inner("Add", bands, d.filled(1e-4)))
    x = d.inner("Transpose", x, perm=[0, 2, 1])
    for item, value in ((64, BANDS), (32, 64)):
        weights = (d.rng.standard_normal((item, value, 3)) / 12).astype(np.float32)
        x = d.inner("Relu", d.inner("Conv", x, d.constant(weights), pads=[1, 1]))
    y = d.inner("ReduceMean", x, axes=[2], keepdims=0)
    shapes = (((1, samples),), ((1, samples + FRAME),))[: 1 + is_free]
    return Network(d.proto(y, (1, 32)), shapes)


FAMILIES: dict[str, Callable[[bool], Network]] = {
    "GRU": lambda is_free: recurrence("GRU", is_free),
    "LSTM": lambda is_free: recurrence("LSTM", is_free),
    "LSTM both ways": lambda is_free: recurrence("LSTM", is_free, directions=2),
    "convolutions": convolutions,
    "transformer": transformer,
    "spectrum": spectrum,
}
"""Networks by name; the argument is whether shapes are free."""
