"""Float convolutions that lowering computes with fewer products."""

from __future__ import annotations

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input
from quantglow.ops import Conv, Reshape, Slice
from quantglow.ops.activation import Activation
from quantglow.types import Array, f32


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
