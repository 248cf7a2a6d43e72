"""Kernels of reductions in order of preference; sums of bytes, and sums in short code.

``ByteSums`` adds bytes over the rows of an image, as a global average does: 16 bits hold the sum of
256 of them.  ``ShortSums``, where code counts, computes one vector of neighboring results after the
other.

``Softmax`` of rows of integers, by the table of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits, first_call
from quantglow.codegen.llvm.kernels.reduce.middle_axis import ReduceKernel
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_lanes, load_strided, store_results
from quantglow.codegen.llvm.kernels.vector.loops import (
    Body,
    Fold,
    LoopAxis,
    Nest,
    emit_row,
    fold_row,
)
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece, pieces
from quantglow.codegen.llvm.values import (
    FLOAT,
    I1,
    I8,
    I16,
    I32,
    PTR,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum, Softmax
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.expression import LARGEST
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
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
        is_row = self.sums and is_bytes and decide(self.inner > 1)
        return is_row and decide(self.x_strides[1] == 1)

    @cached_property
    def lanes(self) -> int:
        return self.target.vector_nbytes // 2

    @cached_property
    def block(self) -> int:
        vectors_in_row = -(-likely(self.inner) // self.lanes)
        return self.lanes * min(MOST_VECTORS, -(-vectors_in_row // 2))

    def reduce_block(self, y: Value, x: Value, width: int) -> None:
        b = self.b
        group = list(pieces(self.target, 0, width, self.lanes))
        totals = [splat(self.kind(p.lanes), "0") for p in group]
        whole, remainder = divmod(self.reduced, ROWS)
        if isinstance(whole, Size) or whole:
            start = [(self.kind(p.lanes), t) for p, t in zip(group, totals, strict=True)]
            loop = b.begin_times(whole, start)
            at = b.at(x, b.mul(loop.index, ROWS * self.step))
            totals = b.end_times(loop, whole, self._added(group, loop.carried, at, ROWS))
        if isinstance(remainder, Size) or remainder:
            totals = self._added(group, totals, b.at(x, whole * ROWS * self.step), remainder)
        narrow, parts = self._narrower(group, totals)
        results = [self.finish(p.lanes, t) for p, t in zip(narrow, parts, strict=True)]
        self.store(y, self.y_strides[1], narrow, results)

    def _added(
        self, group: Sequence[Piece], totals: Sequence[Value], x: Value, rows: Dim
    ) -> list[Value]:
        """``totals`` and the sums of at most ``ROWS`` rows."""
        b = self.b
        sums = [splat(self._words(p), "0") for p in group]
        if isinstance(rows, Size) or rows >= UNROLL:
            sums = self._looped(group, sums, x, rows // UNROLL, UNROLL)
        if isinstance(rows, Size):
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
        self, group: Sequence[Piece], sums: Sequence[Value], x: Value, count: Dim, unroll: int
    ) -> list[Value]:
        """Add ``count`` times ``unroll`` rows, which may be none at free sizes as at known ones."""
        if not isinstance(count, Size) and not count:
            return list(sums)
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
        return short and is_integer and decide(self.inner > 1)

    @cached_property
    def block(self) -> int:
        """A work item is a whole row of results."""
        return int(self.inner)

    def columns(self, y: Value, x: Value, block: Value) -> None:
        b, inner = self.b, int(self.inner)
        whole = inner - inner % self.lanes
        for begin, end, width in ((0, whole, self.lanes), (whole, inner, 1)):
            if begin < end:
                with b.loop(begin, end, width) as index:
                    at_y = b.at(y, b.mul(index, self.y_strides[1]))
                    self.reduce_block(at_y, b.at(x, b.mul(index, self.x_strides[1])), width)


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


OPERATIONS = 40
"""Rough cost of an element: two looks at the table and a division."""


@emits(Softmax)
def emit_softmax(step: Compute, target: Target) -> KernelCall:
    """One work item for each row."""
    op = step.op
    assert isinstance(op, Softmax)
    (x,) = step.inputs
    rows, _ = op.type.shape
    kernel = _Softmax(Builder(index=target.isa.index), target, op, x, step.output)
    kernel.emit()
    pointers: tuple[View | Array, ...] = (step.output, x, _tables(op))
    work = likely(op.type.size) * OPERATIONS / 8
    return KernelCall(kernel.b.finish(), pointers, rows, work, "softmax")


def _tables(op: Softmax) -> Array:
    """The table for the length of rows; where that is free, one for each number of its bits."""
    if not is_free(op.type.shape[1]):
        return np.ascontiguousarray(op.table())
    return np.stack([op.table_for(bits) for bits in range(LARGEST.bit_length() + 1)])


@dataclass
class _Softmax:
    b: Builder
    target: Target
    op: Softmax
    x: View
    y: View

    @property
    def dtype(self) -> DType:
        return self.x.type.dtype

    @property
    def columns(self) -> Dim:
        return self.op.type.shape[1]

    def emit(self) -> None:
        b = self.b
        y, x, table = b.kernel(3)
        if is_free(self.columns):
            table = self.table_of_length(table)
        y_nbytes, x_nbytes = self.y.type.dtype.nbytes, self.dtype.nbytes
        with b.loop("%begin", "%end") as row:
            at_y = b.at(y, b.mul(row, self.y.strides[0] * y_nbytes))
            at_x = b.at(x, b.mul(row, self.x.strides[0] * x_nbytes))
            largest = self.largest(at_x)
            self.integer_row(at_y, at_x, largest, table)

    def table_of_length(self, tables: Value) -> Value:
        """The table for the number of bits of a length that is free."""
        kind = self.b.index
        length = ((kind, str(self.columns)), (I1, "true"))
        zeros = self.b.call(f"llvm.ctlz.{kind}", kind, *length)
        bits = self.b.op("sub", kind, str(kind.nbits), zeros)
        return self.b.at(tables, self.b.mul(bits, 4 * 256))

    def largest(self, x: Value) -> Value:
        """The maximum of a row, as stored."""
        b, dtype = self.b, self.dtype
        element, lowest = ELEMENTS[dtype], dtype.limits[0]

        def neutral(lanes: int) -> Value:
            return splat(vector(lanes, element), vectors.literal(element, lowest))

        def combine(lanes: int, a: Value, c: Value) -> Value:
            return vectors.maximum(b, lanes, dtype, a, c)

        def load(index: Value | int, piece: Piece) -> Value:
            at = self._at(x, index, dtype.nbytes)
            return load_strided(b, element, dtype.nbytes, at, dtype.nbytes, piece)

        fold = Fold(lambda lanes: vector(lanes, element), neutral, combine, load)
        return fold_row(b, fold, self.target.vector_nbytes // dtype.nbytes, self.columns)

    def _at(self, pointer: Value, index: Value | int, itemsize: int) -> Value:
        if isinstance(index, int):
            return self.b.at(pointer, index * itemsize)
        return self.b.at(pointer, self.b.mul(index, itemsize))

    def integer_row(self, y: Value, x: Value, largest: Value, table: Value) -> None:
        """Powers come from the table, twice: for the sum, and for the shares."""
        b, out = self.b, self.op.out
        assert out is not None
        top = vectors.widen(b, 1, I8, largest, self.dtype is DType.I8)

        def power(index: Value | int, piece: Piece) -> Value:
            return self.power(self._at(x, index, 1), piece, top, table)

        # Powers are integers, so their sum is exact: lanes may be added in any order, and every
        # target divides by the same number.
        total = vectors.int_to_float(b, 1, self._sum(power))

        def share(at: Sequence[Value], group: Sequence[Piece]) -> None:
            values = [
                self.share(piece.lanes, self.power(at[1], piece, top, table), total)
                for piece in group
            ]
            store_results(b, self.target, out.dtype, at[0], out.dtype.nbytes, group, values)

        self._row([y, x], (out.dtype.nbytes, 1), share)

    def power(self, x: Value, piece: Piece, top: Value, table: Value) -> Value:
        """``table[max - x]`` as int32 lanes."""
        b, lanes = self.b, piece.lanes
        kind = vector(lanes, I32)
        value = load_lanes(b, self.dtype, x, 1, piece)
        index = b.op("sub", kind, b.broadcast(lanes, I32, top), value)
        if lanes == 1:
            wide = b.as_index(I32, index, "zext")
            return b.load(I32, b.at(table, b.mul(wide, 4)))
        # Lanes of a tail that are not active hold zero, whose distance may be negative.
        index = b.op("and", kind, index, splat(kind, "255"))
        addresses = f"getelementptr i32, ptr {table}, {kind} {index}"
        pointers = b.emit(vector(lanes, PTR), addresses)
        mask = vector(lanes, I1)
        arguments = ((f"<{lanes} x ptr> align 4", pointers), (mask, splat(mask, "true")))
        name = f"llvm.masked.gather.v{lanes}i32.v{lanes}p0"
        return b.call(name, kind, *arguments, (kind, "zeroinitializer"))

    def share(self, lanes: int, power: Value, total: Value) -> Value:
        """``saturate(power / total / step)``"""
        b, op = self.b, self.op
        assert op.out is not None
        kind = vector(lanes, FLOAT)
        real = vectors.int_to_float(b, lanes, power)
        share = b.op("fdiv", kind, real, b.broadcast(lanes, FLOAT, total))
        steps = b.op("fmul", kind, share, splat(kind, f32(float(op.inverse_step()))))
        zero_point = op.type.params.zero_point
        return vectors.quantize_steps(
            b, self.target, lanes, steps, *op.out.dtype.limits, zero_point
        )

    def _sum(self, load: Callable[[Value | int, Piece], Value]) -> Value:
        b = self.b

        def combine(lanes: int, a: Value, c: Value) -> Value:
            return b.op("add", vector(lanes, I32), a, c)

        fold = Fold(
            lambda lanes: vector(lanes, I32),
            lambda lanes: splat(vector(lanes, I32), "0"),
            combine,
            load,
        )
        return fold_row(b, fold, self.target.f32_lanes, self.columns)

    def _row(self, pointers: Sequence[Value], strides: tuple[int, ...], body: Body) -> None:
        lanes = self.target.f32_lanes
        if not self.target.isa.has_masks:
            lanes = vectors.narrower(lanes, self.columns)
        nest = Nest((), LoopAxis(self.columns, strides), lanes, 4)
        emit_row(self.b, self.target, nest, pointers, body)
