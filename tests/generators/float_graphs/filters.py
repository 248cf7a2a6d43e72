"""Float convolutions that lowering computes with fewer products."""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, Reshape, Slice
from quantglow.ir.ops.activation import Activation
from quantglow.ir.types import f32
from quantglow.support.arrays import Array


def bank(taps: int, even: int, odd: int, total: int) -> Array:
    """Filters [1, taps, 1, even + odd], even and odd about ``total / 2``."""
    w = np.random.default_rng(taps + even).normal(size=(taps, even + odd))
    inner = w[total - taps + 1 :]
    half = len(inner) // 2
    signs = np.repeat([1, -1], [even, odd])
    inner[len(inner) - half :] = (signs * inner[:half])[::-1]
    if len(inner) % 2:
        inner[half, even:] = 0
    return np.ascontiguousarray(w[None, :, None], dtype=np.float32)


def transform(batch: int, columns: int, stride: int, w: Array) -> Graph:
    """A bank on signals, of which the first and the last column are left out."""
    taps, channels = w.shape[1], w.shape[3]
    x = Input(name="x", tensor=f32(batch, 1, (columns + 1) * stride + taps, 1))
    conv = Conv(
        name="conv",
        x=x,
        w=Constant(name="w", value=w),
        b=Constant(name="b", value=np.linspace(-1, 1, channels, dtype=np.float32)),
        strides=(1, stride),
        low=-4.0,
    )
    rows = Reshape(name="rows", x=conv, shape=(batch, columns + 2, channels))
    sizes = (batch, columns, channels)
    read = Slice(name="y", x=rows, starts=(0, 1, 0), sizes=sizes, steps=(1, 1, 1))
    return Graph((x,), (("y", read),))


def waves(n: int, lengths: tuple[int, int], is_sine: bool, window: float) -> Array:
    """Cosines or sines [samples, bins] of a transform of ``n`` samples, from the first that is not
    0 on, times a window that falls to ``1 - window`` at the first sample."""
    first = int(is_sine or window == 1)
    samples, bins = np.arange(first, lengths[0] + first)[:, None], np.arange(lengths[1])
    turns = 2 * np.pi * samples * bins / n
    shape = 1 - window * np.cos(np.pi * samples / n) ** 2
    return np.asarray((np.sin if is_sine else np.cos)(turns) * shape, np.float32)


def matrix_product(images: tuple[int, int, int], w: Array, biased: bool) -> Graph:
    """A product of the pixels of images with a matrix."""
    x = Input(name="x", tensor=f32(*images, w.shape[0]))
    b = Constant(name="b", value=np.linspace(-1, 1, w.shape[1], dtype=np.float32))
    matrix = Constant(name="w", value=w[None, None])
    conv = Conv(name="y", x=x, w=matrix, b=b if biased else None, high=3.0)
    return Graph((x,), (("y", conv),))


def three_taps(
    batch: int,
    width: int,
    channels: tuple[int, int],
    pads: tuple[int, int],
    activation: Activation | None = None,
) -> Graph:
    """A filter of three taps along rows of images of two rows."""
    rng, (inputs, outputs) = np.random.default_rng(1), channels
    x = Input(name="x", tensor=f32(batch, 2, width, inputs))
    w = rng.normal(size=(1, 3, inputs, outputs), scale=0.1).astype(np.float32)
    conv = Conv(
        name="y",
        x=x,
        w=Constant(name="w", value=w),
        b=Constant(name="b", value=rng.normal(size=outputs).astype(np.float32)),
        pads=(0, pads[0], 0, pads[1]),
        activation=activation,
        low=-1.5,
    )
    return Graph((x,), (("y", conv),))
