"""Errors of rounding, and sums of squares."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.array_kernels.rounding import rounded
from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import Piece, load, store


def rounding_errors(target: Target) -> str:
    """Pointers: x, errors [grids, size], grids [grids, (scale, low, high)], squares float64 [grids,
    lanes], size int64.  Items: grids.  Squares are sums of squares of the errors."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, errors, grids, squares, sizes = b.kernel(5)
    (size,) = indices(b, sizes, 1)
    wide = vector(vectors.lanes, "double")
    with b.loop("%begin", "%end") as grid:
        bounds = b.at(grids, b.mul(grid, 3 * FLOAT_NBYTES))
        scale, low, high = (vectors.number(b.at(bounds, FLOAT_NBYTES * i)) for i in range(3))
        own = b.at(errors, b.mul(b.mul(grid, size), FLOAT_NBYTES))
        total = b.at(squares, b.mul(grid, 2 * vectors.nbytes))

        def measure(index: Value, piece: Piece) -> None:
            at = b.mul(index, FLOAT_NBYTES)
            value = load(b, "float", piece, b.at(x, at))
            error = b.op("fsub", vectors.kind, rounded(vectors, value, scale, low, high), value)
            store(b, "float", piece, error, b.at(own, at))
            # Lanes beyond the end hold 0, and so do their errors.
            known = b.load(wide, total, align=8)
            b.store(wide, b.op("fadd", wide, known, _square(vectors, error)), total, align=8)

        vectors.each("0", size, measure)
    return b.finish()


def energies(target: Target) -> str:
    """Pointers: x [items, rows, columns], sizes (rows, columns) int64, results float64 [items, 2,
    lanes].  Results are sums of squares, and the sums over columns of the squared sums of rows."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, sizes, results = b.kernel(3)
    rows, columns = indices(b, sizes, 2)
    wide, pitch = vector(vectors.lanes, "double"), b.mul(columns, FLOAT_NBYTES)
    with b.loop("%begin", "%end") as item:
        own = b.at(x, b.mul(b.mul(item, rows), pitch))
        total = b.at(results, b.mul(item, 4 * vectors.nbytes))

        def add(column: Value, piece: Piece) -> None:
            start = b.at(own, b.mul(column, FLOAT_NBYTES))
            zero = (wide, "zeroinitializer")
            loop = b.begin_while(rows, [zero, zero])
            value = load(b, "float", piece, b.at(start, b.mul(loop.index, pitch)))
            squares, sums = loop.carried
            longer = b.cast("fpext", vectors.kind, value, wide)
            squares = b.op("fadd", wide, squares, b.op("fmul", wide, longer, longer))
            squares, sums = b.end_while(loop, [squares, b.op("fadd", wide, sums, longer)])
            for place, found in enumerate((squares, b.op("fmul", wide, sums, sums))):
                entry = b.at(total, place * 2 * vectors.nbytes)
                known = b.load(wide, entry, align=8)
                b.store(wide, b.op("fadd", wide, known, found), entry, align=8)

        vectors.each("0", columns, add)
    return b.finish()


def _square(vectors: Vectors, value: Value) -> Value:
    """The square of float32, exact in float64."""
    b, wide = vectors.b, vector(vectors.lanes, "double")
    longer = b.cast("fpext", vectors.kind, value, wide)
    return b.op("fmul", wide, longer, longer)
