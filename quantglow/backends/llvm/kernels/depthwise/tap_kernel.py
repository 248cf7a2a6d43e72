"""Depthwise convolution of signed bytes, tap by tap.

For processors that interleave no bytes cheaply, and where little code counts: one vector of
channels at a time, all columns of a row, a product for each tap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.dot import LaneProducts
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.depthwise.channel_vectors import ChannelVectors, Place
from quantglow.backends.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.symbolic.size import is_free
from quantglow.types import DType

OFFSET_COLUMNS = 2
"""Neighbouring columns that share the weights of a tap."""
UNROLLED_ROWS = 3
"""Larger windows have a loop over their rows: code counts."""


@dataclass
class TapDepthwise(ChannelVectors):
    """Generator of one depthwise kernel."""

    label = "depthwise by taps"

    @property
    def applies(self) -> bool:
        """Whether the target multiplies bytes lane by lane, and all sizes are known."""
        free = any(map(is_free, (*self.x.pitches, *self.y.pitches, self.y.height, self.y.width)))
        bytes_only = self.conv.x.type.dtype is DType.I8 and self.conv.out is not None
        return self.products is not None and is_depthwise(self.conv) and bytes_only and not free

    @property
    def products(self) -> LaneProducts | None:
        return self.target.isa.lane_products

    @property
    def most_columns(self) -> int:
        return OFFSET_COLUMNS

    @property
    def tap_nbytes(self) -> int:
        assert self.products is not None
        return self.products.weight_nbytes

    def constants(self) -> tuple[Array, Array, Array]:
        """Weights [vectors of channels, taps, packed lanes], bias with the zero point of the input,
        and multipliers; zeros where there are no channels."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant) and self.products is not None
        zero_point = self.conv.x.type.params.zero_point
        bias = b.value.astype(np.int64) - zero_point * channel_sums(w.value)
        taps = self._padded(w.value.reshape(self.taps, -1))
        packed = self.products.pack(taps.reshape(self.taps, -1, self.lanes).transpose(1, 0, 2))
        return (
            packed,
            self._padded(bias.astype(np.int32)),
            self._padded(self.epilogue.multipliers()),
        )

    def _padded(self, values: Array) -> Array:
        """Per-channel values with zeros up to whole vectors."""
        missing = -values.shape[-1] % self.lanes
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])

    # -- sums

    def sums(self, count: int, valid: int, at: Place) -> list[Value]:
        """``ChannelVectors``: a loop over the rows of large windows."""
        b, ints, rows = self.b, self.epilogue.results.ints, self.conv.w.type.shape[0]
        x, sums = b.opaque(at.x), [b.load(ints, at.bias, align=4)] * count
        if rows <= UNROLLED_ROWS:
            for row in range(rows):
                sums = self.row_of_taps(count, row, at.w, x, sums)
            return sums
        loop = b.begin_times(rows, [(ints, value) for value in sums])
        w_row = b.at(at.w, b.mul(loop.index, self.conv.w.type.shape[1] * self.tap_nbytes))
        x_row = b.at(x, b.mul(loop.index, self.conv.dilations[0] * self.x.row_pitch))
        found = self.row_of_taps(count, 0, b.opaque(w_row), b.opaque(x_row), list(loop.carried))
        return b.end_times(loop, rows, found)

    def row_of_taps(
        self, count: int, row: int, w: Value, x: Value, sums: list[Value]
    ) -> list[Value]:
        """``sums`` and the products of a row of the window, for neighbouring output pixels."""
        assert self.products is not None
        b, products, sums = self.b, self.products, list(sums)
        width = self.conv.w.type.shape[1]
        for j in range(width):
            weights = products.weights(b, b.at(w, (row * width + j) * products.weight_nbytes))
            for column in range(count):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                operand = products.operand(b, pixel)
                sums[column] = products.accumulate(b, sums[column], operand, weights)
        return sums
