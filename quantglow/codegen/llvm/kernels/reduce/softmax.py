"""``Softmax`` of rows of integers, by the table of the operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
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
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import FLOAT, I1, I8, I32, PTR, Value, f32, splat, vector
from quantglow.ir.ops import Softmax
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.expression import LARGEST
from quantglow.ir.symbolic.size import is_free, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

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
    def columns(self) -> int:
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
