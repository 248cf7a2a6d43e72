"""Kernels of reductions in order of preference; sums of bytes, and sums in short code.

``ByteSums`` adds bytes over the rows of an image, as a global average does: 16 bits hold the sum of
256 of them.  ``ShortSums``, where code counts, computes one vector of neighboring results after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits, first_call
from quantglow.codegen.llvm.kernels.reduce.middle_axis import ReduceKernel
from quantglow.codegen.llvm.kernels.vector.access import load_strided
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, pieces
from quantglow.codegen.llvm.values import I8, I16, Type, Value, splat, vector
from quantglow.ir.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import is_free, likely
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

ROWS = 256
"""Bytes whose sum fits 16 bits: ``256 * 255 < 2**16``, and ``256 * -128 = -2**15``."""
UNROLL = 4
MOST_VECTORS = 4
"""Vectors of a work item; fewer where two threads could not share the row."""


@dataclass
class ByteSums(ReduceKernel):
    """Vectors of 16-bit sums, added to 32-bit ones every ``ROWS`` rows."""

    @property
    def applies(self) -> bool:
        """Whether the results lie side by side and the sums are of bytes."""
        is_bytes = self.dtype in (DType.U8, DType.I8)
        return self.sums and is_bytes and self.inner > 1 and self.x_strides[1] == 1

    @cached_property
    def lanes(self) -> int:
        return self.target.vector_nbytes // 2

    @cached_property
    def block(self) -> int:
        vectors_in_row = -(-likely(self.inner) // self.lanes)
        return self.lanes * min(MOST_VECTORS, -(-vectors_in_row // 2))

    def block_of(self, y: Value, x: Value, width: int) -> None:
        b = self.b
        group = list(pieces(self.target, 0, width, self.lanes))
        totals = [splat(self.kind(p.lanes), "0") for p in group]
        whole, remainder = divmod(self.reduced, ROWS)
        if is_free(whole) or whole:
            start = [(self.kind(p.lanes), t) for p, t in zip(group, totals, strict=True)]
            loop = b.begin_times(whole, start)
            at = b.at(x, b.mul(loop.index, ROWS * self.step))
            totals = b.end_times(loop, whole, self._added(group, loop.carried, at, ROWS))
        if is_free(remainder) or remainder:
            totals = self._added(group, totals, b.at(x, whole * ROWS * self.step), remainder)
        narrow, parts = self._narrower(group, totals)
        results = [self.finish(p.lanes, t) for p, t in zip(narrow, parts, strict=True)]
        self.store(y, self.y_strides[1], narrow, results)

    def _added(
        self, group: Sequence[Piece], totals: Sequence[Value], x: Value, rows: int
    ) -> list[Value]:
        """``totals`` and the sums of at most ``ROWS`` rows."""
        b = self.b
        sums = [splat(self._words(p), "0") for p in group]
        if is_free(rows) or rows >= UNROLL:
            sums = self._looped(group, sums, x, rows // UNROLL, UNROLL)
        if is_free(rows):
            at = b.at(x, (rows - rows % UNROLL) * self.step)
            sums = self._looped(group, sums, at, rows % UNROLL, 1)
        else:
            for index in range(rows - rows % UNROLL, rows):
                sums = self._row(group, sums, b.at(x, index * self.step))
        new_totals = []
        for piece, total, words in zip(group, totals, sums, strict=True):
            kind = self.kind(piece.lanes)
            wide = b.cast(self._extension, self._words(piece), words, kind)
            new_totals.append(b.op("add", kind, total, wide))
        return new_totals

    def _looped(
        self, group: Sequence[Piece], sums: Sequence[Value], x: Value, count: int, unroll: int
    ) -> list[Value]:
        """Add ``count`` times ``unroll`` rows."""
        b, kinds = self.b, [self._words(p) for p in group]
        loop = b.begin_times(count, list(zip(kinds, sums, strict=True)))
        sums = list(loop.carried)
        at = b.at(x, b.mul(loop.index, unroll * self.step))
        for index in range(unroll):
            sums = self._row(group, sums, b.at(at, index * self.step))
        return b.end_times(loop, count, sums)

    def _words(self, piece: Piece) -> Type:
        return vector(piece.lanes, I16)

    @property
    def _extension(self) -> str:
        return "sext" if self.dtype is DType.I8 else "zext"

    def _row(self, group: Sequence[Piece], sums: Sequence[Value], row: Value) -> list[Value]:
        """Add one row of bytes."""
        b, new_sums = self.b, []
        for piece, total in zip(group, sums, strict=True):
            octets = load_strided(b, I8, 1, row, 1, piece)
            words = b.cast(self._extension, vector(piece.lanes, I8), octets, self._words(piece))
            new_sums.append(b.op("add", self._words(piece), total, words))
        return new_sums

    def _narrower(
        self, group: Sequence[Piece], totals: Sequence[Value]
    ) -> tuple[list[Piece], list[Value]]:
        """The totals in vectors of 32-bit lanes that the target has."""
        lanes = self.target.f32_lanes
        narrow: list[Piece] = []
        parts: list[Value] = []
        for piece, total in zip(group, totals, strict=True):
            if piece.lanes <= lanes:
                narrow.append(piece)
                parts.append(total)
                continue
            for first in range(0, piece.count, lanes):
                active = min(lanes, piece.count - first)
                # A vector of one active lane would be a masked store that writes too much.
                width = 1 if active == 1 else lanes
                narrow.append(Piece(piece.start + first, width, active))
                parts.append(self._part(piece, total, first, width))
        return narrow, parts

    def _part(self, piece: Piece, total: Value, first: int, width: int) -> Value:
        """``width`` lanes of a total from lane ``first``."""
        kind = self.kind(piece.lanes)
        if width == 1:
            return self.b.extract(total, first)
        return self.b.shuffle(kind, total, "poison", range(first, first + width))


@dataclass
class ShortSums(ReduceKernel):
    """A loop over vectors, then one over single results."""

    @property
    def applies(self) -> bool:
        """Whether code counts on the target, and integers are added that lie in rows."""
        sizes = (self.inner, self.reduced, *self.x_strides, *self.y_strides)
        is_integer = self.sums and not self.dtype.is_float
        short = self.target.saves_code and not any(map(is_free, sizes))
        return short and is_integer and self.inner > 1

    @cached_property
    def block(self) -> int:
        """A work item is a whole row of results."""
        return self.inner

    def columns(self, y: Value, x: Value, block: Value) -> None:
        b, whole = self.b, self.inner - self.inner % self.lanes
        for begin, end, width in ((0, whole, self.lanes), (whole, self.inner, 1)):
            if begin < end:
                with b.loop(begin, end, width) as index:
                    at_y = b.at(y, b.mul(index, self.y_strides[1]))
                    self.block_of(at_y, b.at(x, b.mul(index, self.x_strides[1])), width)


KERNELS = (ShortSums, ByteSums, ReduceKernel)
"""The last one takes every reduction."""


@emits(ReduceMean, ReduceSum, ReduceMax, ReduceMin)
def emit_reduce(step: Compute, target: Target) -> KernelCall:
    """Sums of bytes have a kernel of their own."""
    op, x = step.op, step.inputs[0]
    assert isinstance(op, ReduceMean | ReduceSum | ReduceMax | ReduceMin)
    return first_call(
        partial(k, Builder(index=target.isa.index), target, op, x, step.output) for k in KERNELS
    )
