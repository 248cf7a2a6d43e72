"""Numbers rounded to the steps of integers, and back."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors
from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.rounding import rint
from quantglow.backends.llvm.kernels.vector.vectors import load, store


def rounded(vectors: Vectors, value: Value, scale: Value, low: Value, high: Value) -> Value:
    """``clip(rint(value / scale), low, high) * scale``, NaN as ``low``."""
    b, kind = vectors.b, vectors.kind
    steps = b.op("fdiv", kind, value, scale)
    steps = rint(b, vectors.target, vectors.lanes, steps)
    steps = b.select(kind, b.compare("ogt", kind, steps, low), steps, low)
    steps = b.select(kind, b.compare("olt", kind, steps, high), steps, high)
    return b.op("fmul", kind, steps, scale)


def rounded_reals(target: Target) -> str:
    """Pointers: x, result, and scale, low, high.  Items: numbers."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, grid = b.kernel(3)
    scale, low, high = (vectors.number(b.at(grid, FLOAT_NBYTES * place)) for place in range(3))
    with vectors.pieces("%begin", "%end") as (index, piece):
        at = b.mul(index, FLOAT_NBYTES)
        value = load(b, "float", piece, b.at(x, at))
        store(b, "float", piece, rounded(vectors, value, scale, low, high), b.at(result, at))
    return b.finish()
