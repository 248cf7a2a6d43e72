"""Depthwise convolution of integers where products of single elements are instructions.

A vector of channels by some columns stays in registers.  Each input pixel is loaded once for a row
of taps, and multiplied for every column that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.contraction.dot_choice import dot_of
from quantglow.backends.llvm.kernels.depthwise.float_kernel import FloatDepthwise
from quantglow.backends.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.backends.llvm.kernels.vector.partial import load_partial, store_partial
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.graph.node import Constant
from quantglow.symbolic.size import likely
from quantglow.types import Array, DType

MOST_COLUMNS = 8
WORD_NBYTES = 2


@dataclass
class ElementDepthwise(FloatDepthwise):
    """Generator of one integer depthwise kernel."""

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

    # -- the call

    def call(self) -> KernelCall:
        self.epilogue.check()
        kh, kw = self.conv.w.type.shape[:2]
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, *self.constants()),
            items=self.y.count * self.y.height,
            work=float(likely(outputs) * kh * kw),
            label="depthwise elements",
            facts=f"{type(self.dot).__name__} {self.epilogue.facts}",
        )

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

    # -- the text

    def pointers(self) -> tuple[Value, ...]:
        *pointers, self.scales = self.b.kernel(5)
        return tuple(pointers)

    def channel_block(
        self, block: Value, valid: int, x: Value, y: Value, w: Value, bias: Value
    ) -> None:
        """All columns of a row for one vector of channels."""
        b = self.b
        kh, kw = self.conv.w.type.shape[:2]
        channel = b.mul(block, self.lanes)
        x, y = b.at(x, b.mul(channel, self.x.itemsize)), b.at(y, b.mul(channel, self.y.itemsize))
        w = b.at(w, b.mul(block, kh * kw * self.lanes * WORD_NBYTES))
        per_channel = b.mul(block, self.target.vector_nbytes)
        floats = self.epilogue.results.floats
        self.scale = b.load(floats, b.at(self.scales, per_channel), align=4)
        self.all_columns(valid, x, y, w, b.at(bias, per_channel))

    def columns(self, count: int, valid: int, x: Value, y: Value, w: Value, bias: Value) -> None:
        """``count`` neighbouring output pixels."""
        b, element = self.b, self.epilogue.results.element
        x = b.opaque(x)
        sums = [b.load(self.dot.kind, bias, align=4)] * count
        for row in range(self.conv.w.type.shape[0]):
            self.add_row(row, valid, x, w, sums)
        for column, total in enumerate(sums):
            values = self.epilogue.values(b, total, self.scale, None)
            data = self.epilogue.results.packed(b, [values])
            place = b.at(y, column * self.y.column_pitch)
            store_partial(b, self.target, element, self.lanes, valid, data, place)

    def add_row(self, row: int, valid: int, x: Value, w: Value, sums: list[Value]) -> None:
        """Add the products of one row of taps."""
        b, dot = self.b, self.dot
        taps = self.conv.w.type.shape[1]
        places = (b.at(w, (row * taps + j) * self.lanes * WORD_NBYTES) for j in range(taps))
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
