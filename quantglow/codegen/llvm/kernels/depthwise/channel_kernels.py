"""Depthwise convolution by vectors of channels: float32, integers by elements, or tap by tap.

In ``FloatDepthwise``, and in ``ElementDepthwise`` for integers where products of single elements
are instructions, a vector of channels by some columns stays in registers.  Each input pixel is
loaded once for a row of taps, and multiplied for every column that it belongs to.

``TapDepthwise`` is for signed bytes on processors that interleave no bytes cheaply, and where
little code counts: one vector of channels at a time, all columns of a row, a product for each tap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.dot import LaneProducts
from quantglow.codegen.llvm.kernels.contraction.geometry import choose_dot
from quantglow.codegen.llvm.kernels.contraction.results import channel_sums
from quantglow.codegen.llvm.kernels.depthwise.channel_vectors import ChannelPointers, ChannelVectors
from quantglow.codegen.llvm.kernels.depthwise.plan import UNROLLED_TAPS, is_depthwise
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import FLOAT, I16, Value, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.symbolic.size import is_free, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

FLOAT_COLUMNS = 8
"""Output columns in registers: enough sums to hide the latency of the multiply-add."""
WEIGHT_NBYTES = 4
"""Bytes of a float32 weight."""

MOST_COLUMNS = 8
"""Maximum number of output columns in registers, for integers."""
WORD_NBYTES = 2
"""Bytes of a weight of ``ElementDepthwise``."""

OFFSET_COLUMNS = 2
"""Neighboring columns that share the weights of a tap."""
UNROLLED_ROWS = 3
"""Larger windows have a loop over their rows: code counts."""


@dataclass
class FloatDepthwise(ChannelVectors):
    """Generator of one float32 depthwise kernel.

    ``chosen``: what was tuned.
    """

    chosen: KernelChoice | None = None
    label = "depthwise float"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dot = self.target.dot_product(DType.F32)

    @property
    def applies(self) -> bool:
        dtypes = {self.conv.x.type.dtype, self.conv.type.dtype}
        # Rows of taps are unrolled one by one where there are many.
        most = UNROLLED_TAPS * self.conv.w.type.fixed_shape[0]
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
        kh, kw, _, c = w.type.fixed_shape
        padding = -c % self.lanes
        taps = np.pad(w.value.reshape(kh * kw, c), ((0, 0), (0, padding)))
        blocks = taps.reshape(kh * kw, -1, self.lanes).transpose(1, 0, 2)
        return np.ascontiguousarray(blocks), np.pad(b.value, (0, padding))

    # -- sums

    def sums(self, count: int, valid: int, at: ChannelPointers) -> list[Value]:
        """``ChannelVectors``"""
        b, kind = self.b, self.dot.kind
        kh, kw = self.conv.w.type.fixed_shape[:2]
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
        """The sums of neighboring pixels, and the products of a row of taps."""
        b, kw, totals = self.b, self.conv.w.type.fixed_shape[1], list(sums)
        for j in range(kw):
            place = b.at(w, (row * kw + j) * self.tap_nbytes)
            weights = (b.load(self.dot.kind, place, align=4),)
            for column in range(len(totals)):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                value = load_partial(b, self.target, FLOAT, self.lanes, valid, pixel)
                totals[column] = self.dot.accumulate(b, totals[column], (value,), weights)
        return totals


@dataclass
class ElementDepthwise(FloatDepthwise):
    """Generator of one integer depthwise kernel."""

    label = "depthwise elements"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dot = choose_dot(self.conv, self.conv.x.type.dtype, self.target)

    @property
    def applies(self) -> bool:
        dtypes = {self.conv.x.type.dtype, self.conv.type.dtype}
        integer = dtypes <= {DType.U8, DType.I8, DType.I16}
        return integer and is_depthwise(self.conv) and self.dot.multiplies_elements

    @property
    def usual_columns(self) -> int:
        """Output columns in registers, beside the weights of a row of taps."""
        taps = self.conv.w.type.fixed_shape[1]
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
        kh, kw, _, c = w.type.fixed_shape
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

    def sums(self, count: int, valid: int, at: ChannelPointers) -> list[Value]:
        """``ChannelVectors``"""
        x = self.b.opaque(at.x)
        sums = [self.b.load(self.dot.kind, at.bias, align=4)] * count
        for row in range(self.conv.w.type.fixed_shape[0]):
            self.add_row(row, valid, x, at.w, sums)
        return sums

    def add_row(self, row: int, valid: int, x: Value, w: Value, sums: list[Value]) -> None:
        """Add the products of one row of taps."""
        b, dot = self.b, self.dot
        taps = self.conv.w.type.fixed_shape[1]
        places = (b.at(w, (row * taps + j) * self.tap_nbytes) for j in range(taps))
        weights = [b.load(vector(self.lanes, I16), place, align=2) for place in places]
        element = ELEMENTS[self.conv.x.type.dtype]
        for source, uses in self.sources(len(sums)):
            pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
            loaded = load_partial(b, self.target, element, self.lanes, valid, pixel)
            word = dot.to_words(b, vector(self.lanes, element), loaded)
            for column, tap in uses:
                sums[column] = dot.accumulate(b, sums[column], (word,), (weights[tap],))

    def sources(self, columns: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Input columns from left to right, with the (output column, tap) that each belongs to."""
        uses: dict[int, list[tuple[int, int]]] = {}
        for column in range(columns):
            for tap in range(self.conv.w.type.fixed_shape[1]):
                source = column * self.conv.strides[1] + tap * self.conv.dilations[1]
                uses.setdefault(source, []).append((column, tap))
        yield from sorted(uses.items())


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

    def sums(self, count: int, valid: int, at: ChannelPointers) -> list[Value]:
        """``ChannelVectors``: a loop over the rows of large windows."""
        b, ints, rows = self.b, self.epilogue.results.ints, self.conv.w.type.fixed_shape[0]
        x, sums = b.opaque(at.x), [b.load(ints, at.bias, align=4)] * count
        if rows <= UNROLLED_ROWS:
            for row in range(rows):
                sums = self.row_of_taps(count, row, at.w, x, sums)
            return sums
        loop = b.begin_times(rows, [(ints, value) for value in sums])
        w_row = b.at(at.w, b.mul(loop.index, self.conv.w.type.fixed_shape[1] * self.tap_nbytes))
        x_row = b.at(x, b.mul(loop.index, self.conv.dilations[0] * self.x.row_pitch))
        totals = self.row_of_taps(count, 0, b.opaque(w_row), b.opaque(x_row), list(loop.carried))
        return b.end_times(loop, rows, totals)

    def row_of_taps(
        self, count: int, row: int, w: Value, x: Value, sums: list[Value]
    ) -> list[Value]:
        """``sums`` and the products of a row of the window, for neighboring output pixels."""
        assert self.products is not None
        b, products, sums = self.b, self.products, list(sums)
        width = self.conv.w.type.fixed_shape[1]
        for j in range(width):
            weights = products.weights(b, b.at(w, (row * width + j) * products.weight_nbytes))
            for column in range(count):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                operand = products.operand(b, pixel)
                sums[column] = products.accumulate(b, sums[column], operand, weights)
        return sums
