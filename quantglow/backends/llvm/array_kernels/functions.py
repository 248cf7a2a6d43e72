"""Functions of single elements, and quotients by columns."""

from __future__ import annotations

from functools import lru_cache

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.scalars import Scalars
from quantglow.backends.llvm.kernels.vector.vectors import Piece, load, store
from quantglow.ops.expression import Expr, arg
from quantglow.types import DType

FUNCTIONS_KEPT = 256
"""Number of functions that are kept with their numbers apart."""


@lru_cache(FUNCTIONS_KEPT)
def with_numbers_apart(function: Expr) -> tuple[Expr, tuple[float, ...]]:
    """A function of ``$0`` whose float32 constants are operands ``$1``, ``$2``, …, and these: so
    functions that differ in constants only share their code.
    """
    numbers: list[float] = []

    def moved(part: Expr) -> Expr:
        if part.op == "f":
            numbers.append(float(part.value))
            return arg(len(numbers))
        return Expr(part.op, tuple(map(moved, part.args)), part.value)

    return moved(function.rounded()), tuple(numbers)


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

        def divide(column: Value, piece: Piece, start: Value = start) -> None:
            at = b.mul(column, FLOAT_NBYTES)
            pair = [load(b, "float", piece, b.at(p, at)) for p in (b.at(x, start), divisors)]
            value = b.op("fdiv", vectors.kind, *pair)
            is_larger = b.compare("ogt", vectors.kind, value, high)
            value = b.select(vectors.kind, is_larger, high, value)
            store(b, "float", piece, value, b.at(b.at(result, start), at))

        vectors.each("0", columns, divide)
    return b.finish()
