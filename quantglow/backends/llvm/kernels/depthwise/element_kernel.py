"""Depthwise convolution of integers where products of single elements are instructions.

A vector of channels by some columns stays in registers.  Each input pixel is loaded once for a row
of taps, and multiplied for every column that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.kernels.contraction.dot_choice import dot_of
from quantglow.backends.llvm.kernels.depthwise.channel_vectors import Place
from quantglow.backends.llvm.kernels.depthwise.float_kernel import FloatDepthwise
from quantglow.backends.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.types import DType

MOST_COLUMNS = 8
WORD_NBYTES = 2


@dataclass
class ElementDepthwise(FloatDepthwise):
    """Generator of one integer depthwise kernel."""

    label = "depthwise elements"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dot = dot_of(self.conv, self.conv.x.type.dtype, self.target)

    @property
    def applies(self) -> bool:
        dtypes = {self.conv.x.type.dtype, self.conv.type.dtype}
        integer = dtypes <= {DType.U8, DType.I8, DType.I16}
        return integer and is_depthwise(self.conv) and self.dot.multiplies_elements

    @property
    def usual_columns(self) -> int:
        """Output columns in registers, beside the weights of a row of taps."""
        taps = self.conv.w.type.shape[1]
        free = 2 * self.target.registers - taps - 2  # words take half a register
        return max(1, min(MOST_COLUMNS, free // 2))

    @property
    def tap_nbytes(self) -> int:
        return self.lanes * WORD_NBYTES

    def constants(self) -> tuple[Array, ...]:
        """Weights [blocks of channels, taps, lanes] as words, bias (input zero point folded in) and
        multipliers [blocks, lanes], zero-padded."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        kh, kw, _, c = w.type.shape
        padding = -c % self.lanes
        taps = np.pad(w.value.reshape(kh * kw, c).astype(np.int16), ((0, 0), (0, padding)))
        blocks = taps.reshape(kh * kw, -1, self.lanes).transpose(1, 0, 2)
        sums = w.value.astype(np.int64).sum(axis=(0, 1, 2))
        bias = (b.value.astype(np.int64) - self.conv.x.type.params.zero_point * sums).astype(
            np.int32
        )
        each = (np.pad(values, (0, padding)) for values in (bias, self.epilogue.multipliers()))
        return np.ascontiguousarray(blocks), *each

    # -- sums

    def sums(self, count: int, valid: int, at: Place) -> list[Value]:
        """``ChannelVectors``"""
        x = self.b.opaque(at.x)
        sums = [self.b.load(self.dot.kind, at.bias, align=4)] * count
        for row in range(self.conv.w.type.shape[0]):
            self.add_row(row, valid, x, at.w, sums)
        return sums

    def add_row(self, row: int, valid: int, x: Value, w: Value, sums: list[Value]) -> None:
        """Add the products of one row of taps."""
        b, dot = self.b, self.dot
        taps = self.conv.w.type.shape[1]
        places = (b.at(w, (row * taps + j) * self.tap_nbytes) for j in range(taps))
        weights = [b.load(vector(self.lanes, "i16"), place, align=2) for place in places]
        element = ELEMENTS[self.conv.x.type.dtype]
        for source, uses in self.sources(len(sums)):
            pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
            loaded = load_partial(b, self.target, element, self.lanes, valid, pixel)
            word = dot.words_of(b, vector(self.lanes, element), loaded)
            for column, tap in uses:
                sums[column] = dot.accumulate(b, sums[column], (word,), (weights[tap],))

    def sources(self, columns: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Input columns from left to right, with the (output column, tap) that each belongs to."""
        uses: dict[int, list[tuple[int, int]]] = {}
        for column in range(columns):
            for tap in range(self.conv.w.type.shape[1]):
                source = column * self.conv.strides[1] + tap * self.conv.dilations[1]
                uses.setdefault(source, []).append((column, tap))
        yield from sorted(uses.items())
