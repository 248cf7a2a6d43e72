"""``Softmax`` of rows: float32 by polynomials, integers by the table of the operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels import mathfun, vectors
from quantglow.backends.llvm.kernels.fold import Fold, fold_row
from quantglow.backends.llvm.kernels.nest import Axis, Body, Nest, emit_row
from quantglow.backends.llvm.kernels.strided import (
    load_lanes,
    load_strided,
    store_results,
    store_strided,
)
from quantglow.backends.llvm.kernels.vectors import ELEMENTS, Piece
from quantglow.backends.llvm.target import Target
from quantglow.instr.program import Compute, View
from quantglow.ops import Softmax
from quantglow.types import Array, DType

OPERATIONS = 40
"""Rough cost of an element: an exponential and a division."""
NEGLIGIBLE = -80.0
"""So far below the maximum a share is less than 2e-35.  Masked elements lie there; their powers
would be subnormal, which costs a processor a hundred cycles each."""


@emits(Softmax)
def emit_softmax(step: Compute, target: Target) -> KernelCall:
    """One work item for each row."""
    op = step.op
    assert isinstance(op, Softmax)
    (x,) = step.inputs
    rows, _ = op.type.shape
    kernel = _Softmax(Builder(), target, op, x, step.output)
    table = [] if op.out is None else [np.ascontiguousarray(op.table())]
    kernel.emit(len(table))
    pointers: tuple[View | Array, ...] = (step.output, x, *table)
    work = op.type.size * OPERATIONS / 8
    return KernelCall(kernel.b.finish(), pointers, rows, work, "softmax")


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

    def emit(self, tables: int) -> None:
        b = self.b
        y, x, *table = b.kernel(2 + tables)
        y_nbytes, x_nbytes = self.y.type.dtype.nbytes, self.dtype.nbytes
        with b.loop("%begin", "%end") as row:
            at_y = b.at(y, b.mul(row, self.y.strides[0] * y_nbytes))
            at_x = b.at(x, b.mul(row, self.x.strides[0] * x_nbytes))
            largest = self.largest(at_x)
            if self.op.out is None:
                self.float_row(at_y, at_x, largest)
            else:
                self.integer_row(at_y, at_x, largest, table[0])

    def largest(self, x: Value) -> Value:
        """The maximum of a row, as stored; any of them if there is a NaN.

        That shows in the sum of the powers, and makes the whole row NaN.
        """
        b, dtype = self.b, self.dtype
        element = ELEMENTS[dtype]
        lowest = -np.inf if dtype.is_float else dtype.limits[0]

        def neutral(lanes: int) -> Value:
            return splat(vector(lanes, element), vectors.literal(element, lowest))

        def combine(lanes: int, a: Value, c: Value) -> Value:
            if dtype.is_float:
                kind = vector(lanes, element)
                return b.select(kind, b.compare("ogt", kind, a, c), a, c)
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

    # -- float32

    def float_row(self, y: Value, x: Value, largest: Value) -> None:
        """Powers are written to the result, summed, and scaled: one division for the row."""
        b = self.b

        def power(index: Value | int, piece: Piece) -> Value:
            kind = vector(piece.lanes, "float")
            value = load_strided(b, "float", 4, self._at(x, index, 4), 4, piece)
            top = b.broadcast(piece.lanes, "float", largest)
            result = self._exp(piece.lanes, b.op("fsub", kind, value, top))
            store_strided(b, "float", 4, self._at(y, index, 4), 4, piece, result)
            return result

        share = b.op("fdiv", "float", f32(1.0), self._sum("float", power))

        def scale(at: Sequence[Value], group: Sequence[Piece]) -> None:
            for piece in group:
                kind = vector(piece.lanes, "float")
                value = load_strided(b, "float", 4, at[0], 4, piece)
                scaled = b.op("fmul", kind, value, b.broadcast(piece.lanes, "float", share))
                store_strided(b, "float", 4, at[0], 4, piece, scaled)

        self._row([y], (4,), scale)

    def _exp(self, lanes: int, x: Value) -> Value:
        """``exp(x)`` of x <= 0; 0 below ``NEGLIGIBLE``."""
        b, kind = self.b, vector(lanes, "float")
        limit, zero = splat(kind, f32(NEGLIGIBLE)), splat(kind, f32(0.0))
        below = b.compare("olt", kind, x, limit)
        power = mathfun.exp_normal(b, lanes, b.select(kind, below, limit, x))
        return b.select(kind, below, zero, power)

    # -- integers

    def integer_row(self, y: Value, x: Value, largest: Value, table: Value) -> None:
        """Powers come from the table, twice: for the sum, and for the shares."""
        b, out = self.b, self.op.out
        assert out is not None
        top = vectors.widen(b, 1, "i8", largest, self.dtype is DType.I8)

        def power(index: Value | int, piece: Piece) -> Value:
            return self.power(self._at(x, index, 1), piece, top, table)

        total = vectors.int_to_float(b, 1, self._sum("i32", power))

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
        kind = vector(lanes, "i32")
        value = load_lanes(b, self.dtype, x, 1, piece)
        index = b.op("sub", kind, b.broadcast(lanes, "i32", top), value)
        if lanes == 1:
            wide = b.cast("zext", "i32", index, "i64")
            return b.load("i32", b.at(table, b.mul(wide, 4)))
        # Lanes of a tail that are not active hold zero, whose distance may be negative.
        index = b.op("and", kind, index, splat(kind, "255"))
        pointers = b.emit(f"getelementptr i32, ptr {table}, {kind} {index}")
        mask = f"<{lanes} x i1>"
        arguments = ((f"<{lanes} x ptr> align 4", pointers), (mask, splat(mask, "true")))
        name = f"llvm.masked.gather.v{lanes}i32.v{lanes}p0"
        return b.call(name, kind, *arguments, (kind, "zeroinitializer"))

    def share(self, lanes: int, power: Value, total: Value) -> Value:
        """``saturate(power / total / step)``"""
        b, op = self.b, self.op
        assert op.out is not None
        kind = vector(lanes, "float")
        real = vectors.int_to_float(b, lanes, power)
        share = b.op("fdiv", kind, real, b.broadcast(lanes, "float", total))
        steps = b.op("fmul", kind, share, splat(kind, f32(float(op.inverse_step()))))
        zero_point = op.type.params.zero_point
        return vectors.quantize_steps(
            b, self.target, lanes, steps, *op.out.dtype.limits, zero_point
        )

    # -- both

    def _sum(self, element: str, load: Callable[[Value | int, Piece], Value]) -> Value:
        b = self.b
        operation = "fadd" if element == "float" else "add"
        zero = f32(0.0) if element == "float" else "0"

        def combine(lanes: int, a: Value, c: Value) -> Value:
            return b.op(operation, vector(lanes, element), a, c)

        fold = Fold(
            lambda lanes: vector(lanes, element),
            lambda lanes: splat(vector(lanes, element), zero),
            combine,
            load,
        )
        return fold_row(b, fold, self.target.f32_lanes, self.columns)

    def _row(self, pointers: Sequence[Value], strides: tuple[int, ...], body: Body) -> None:
        lanes = self.target.f32_lanes
        if not vectors.has_masks(self.target):
            lanes = vectors.narrower(lanes, self.columns)
        nest = Nest((), Axis(self.columns, strides), lanes, 4)
        emit_row(self.b, self.target, nest, pointers, body)
