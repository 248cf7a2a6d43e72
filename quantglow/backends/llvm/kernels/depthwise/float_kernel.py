"""Depthwise convolution of float32: a vector of channels by several columns in registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.kernels.depthwise.channel_vectors import ChannelVectors, Place
from quantglow.backends.llvm.kernels.depthwise.plan import UNROLLED_TAPS, is_depthwise
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.lazy import cached_property
from quantglow.symbolic.size import likely
from quantglow.types import DType

FLOAT_COLUMNS = 8
"""Output columns in registers: enough sums to hide the latency of the multiply-add."""
WEIGHT_NBYTES = 4


@dataclass
class FloatDepthwise(ChannelVectors):
    """Generator of one float32 depthwise kernel.

    ``chosen``: what was tuned.
    """

    chosen: Choice | None = None
    label = "depthwise float"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dot = self.target.dot_product(DType.F32)

    @property
    def applies(self) -> bool:
        dtypes = {self.conv.x.type.dtype, self.conv.type.dtype}
        # Rows of taps are unrolled one by one where there are many.
        most = UNROLLED_TAPS * self.conv.w.type.shape[0]
        return is_depthwise(self.conv, most) and dtypes == {DType.F32}

    @property
    def tap_nbytes(self) -> int:
        return self.lanes * WEIGHT_NBYTES

    @cached_property
    def most_columns(self) -> int:
        """Output columns in registers."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.chosen.tile[1]
        return self.usual_columns

    @property
    def usual_columns(self) -> int:
        """``most_columns``, where nothing was chosen."""
        return FLOAT_COLUMNS

    @property
    def possible_columns(self) -> list[int]:
        """Numbers of columns that can be chosen."""
        most = min(self.target.registers - 2, likely(self.y.width))
        return sorted({self.usual_columns, *range(2, most + 1, 2)})

    def constants(self) -> tuple[Array, ...]:
        """Weights [blocks of channels, taps, lanes] and bias [blocks, lanes], zero-padded."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        kh, kw, _, c = w.type.shape
        padding = -c % self.lanes
        taps = np.pad(w.value.reshape(kh * kw, c), ((0, 0), (0, padding)))
        blocks = taps.reshape(kh * kw, -1, self.lanes).transpose(1, 0, 2)
        return np.ascontiguousarray(blocks), np.pad(b.value, (0, padding))

    # -- sums

    def sums(self, count: int, valid: int, at: Place) -> list[Value]:
        """``ChannelVectors``"""
        b, kind = self.b, self.dot.kind
        kh, kw = self.conv.w.type.shape[:2]
        sums = [b.load(kind, at.bias, align=4)] * count
        if kh * kw <= UNROLLED_TAPS:
            for i in range(kh):
                sums = self.row_of_taps(sums, valid, at.x, at.w, i)
            return sums
        loop = b.begin_loop(kh, [(kind, each) for each in sums])
        x_row = b.at(at.x, b.mul(loop.index, self.conv.dilations[0] * self.x.row_pitch))
        w_row = b.at(at.w, b.mul(loop.index, kw * self.tap_nbytes))
        return b.end_loop(loop, self.row_of_taps(loop.carried, valid, x_row, w_row, 0))

    def row_of_taps(
        self, sums: list[Value], valid: int, x: Value, w: Value, row: int
    ) -> list[Value]:
        """The sums of neighbouring pixels, and the products of a row of taps."""
        b, kw, found = self.b, self.conv.w.type.shape[1], list(sums)
        for j in range(kw):
            place = b.at(w, (row * kw + j) * self.tap_nbytes)
            weights = (b.load(self.dot.kind, place, align=4),)
            for column in range(len(found)):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                value = load_partial(b, self.target, "float", self.lanes, valid, pixel)
                found[column] = self.dot.accumulate(b, found[column], (value,), weights)
        return found
