"""Functions of elements of one array or of two."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.builder import Builder, Value, f32, splat
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.scalars import Scalars
from quantglow.backends.llvm.kernels.vector.vectors import Piece, load, store
from quantglow.ops.expression import Expr
from quantglow.types import DType


def mapped(target: Target, function: Expr) -> str:
    """Pointers: x, result, and the numbers ``$1``, … of a function of ``$0``; all float32.  Items:
    numbers of x."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, numbers = b.kernel(3)
    count = function.operand_count()
    others = [vectors.number(b.at(numbers, FLOAT_NBYTES * place)) for place in range(count - 1)]

    def map_some(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        operands = [load(b, "float", piece, b.at(x, at)), *others]
        scalars = Scalars(b, target, vectors.lanes, operands, [DType.F32] * count)
        store(b, "float", piece, scalars.value(function), b.at(result, at))

    vectors.each("%begin", "%end", map_some)
    return b.finish()


def quotients(target: Target) -> str:
    """Pointers: x [rows, columns], divisors [columns], result, the largest result, the number of
    columns; float32 but for the last.  Items: rows."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, divisors, result, bound, sizes = b.kernel(5)
    (columns,), high = indices(b, sizes, 1), vectors.number(bound)
    with b.loop("%begin", "%end") as row:
        start = b.mul(b.mul(row, columns), FLOAT_NBYTES)

        def divide(column: Value, piece: Piece) -> None:
            at = b.mul(column, FLOAT_NBYTES)
            pair = [load(b, "float", piece, b.at(p, at)) for p in (b.at(x, start), divisors)]
            value = b.op("fdiv", vectors.kind, *pair)
            is_larger = b.compare("ogt", vectors.kind, value, high)
            value = b.select(vectors.kind, is_larger, high, value)
            store(b, "float", piece, value, b.at(b.at(result, start), at))

        vectors.each("0", columns, divide)
    return b.finish()


def missing_sums(target: Target) -> str:
    """Pointers: sums that are wanted, sums, and bounds (low, high); all float32.  Items: numbers.
    The sums become what is missing; 0 where both are at or beyond the same bound."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    wanted, sums, bounds = b.kernel(3)
    kind, mask = vectors.kind, f"<{vectors.lanes} x i1>"
    low, high = (vectors.number(b.at(bounds, FLOAT_NBYTES * place)) for place in range(2))

    def subtract(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        pair = [load(b, "float", piece, b.at(pointer, at)) for pointer in (wanted, sums)]
        sides = []
        for predicate, bound in (("ole", low), ("oge", high)):
            one, other = (b.compare(predicate, kind, value, bound) for value in pair)
            sides.append(b.op("and", mask, one, other))
        missing = b.op("fsub", kind, *pair)
        missing = b.select(kind, b.op("or", mask, *sides), splat(kind, f32(0.0)), missing)
        store(b, "float", piece, missing, b.at(sums, at))

    vectors.each("%begin", "%end", subtract)
    return b.finish()
