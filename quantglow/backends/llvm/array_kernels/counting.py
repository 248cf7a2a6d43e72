"""Extremes of numbers, and their counts in bins of equal width."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.rounding import floor
from quantglow.backends.llvm.kernels.vector.vectors import Piece, bits, load, store

TABLES = 4
"""Tables of counts that take turns: after a ReLU half of the values are in one bin, and a count
waits for the one before."""

MAGNITUDE = 0x7FFFFFFF
"""The bits of a float32 without its sign; they grow with it, and are largest for NaN."""


def extremes(target: Target) -> str:
    """Pointers: x, result [3, lanes]: smallest and largest numbers, largest bits of magnitudes.
    Items: whole vectors, at least one."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result = b.kernel(2)
    kind, whole = vectors.kind, vector(vectors.lanes, "i32")
    first = b.load(kind, x)
    start = [(kind, first), (kind, first), (whole, "zeroinitializer")]
    loop = b.begin_while("%end", start)
    value = b.load(kind, b.at(x, b.mul(loop.index, vectors.nbytes)))
    low, high, magnitude = loop.carried
    low = b.select(kind, b.compare("olt", kind, value, low), value, low)
    high = b.select(kind, b.compare("ogt", kind, value, high), value, high)
    own = b.op("and", whole, bits(b, vectors.lanes, value), splat(whole, str(MAGNITUDE)))
    magnitude = b.select(whole, b.compare("sgt", whole, own, magnitude), own, magnitude)
    for place, (found, (of, _)) in enumerate(
        zip(b.end_while(loop, [low, high, magnitude]), start, strict=True)
    ):
        b.store(of, found, b.at(result, place * vectors.nbytes))
    return b.finish()


def reaches(target: Target) -> str:
    """Pointers: x [rows, columns], bits of float32 [columns], the number of columns.  Items: rows.
    The bits become those of the largest magnitude, where that is larger."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, sizes = b.kernel(3)
    whole = vector(vectors.lanes, "i32")
    (columns,) = indices(b, sizes, 1)
    with b.loop("%begin", "%end") as row:
        start = b.at(x, b.mul(b.mul(row, columns), FLOAT_NBYTES))

        def widen(column: Value, piece: Piece) -> None:
            at = b.mul(column, FLOAT_NBYTES)
            value = load(b, "i32", piece, b.at(start, at))
            value = b.op("and", whole, value, splat(whole, str(MAGNITUDE)))
            known = load(b, "i32", piece, b.at(result, at))
            larger = b.select(whole, b.compare("sgt", whole, value, known), value, known)
            store(b, "i32", piece, larger, b.at(result, at))

        vectors.each("0", columns, widen)
    return b.finish()


def counts(target: Target) -> str:
    """Pointers: x, tables of int32 [TABLES, bins], float32 (factor, index of the first bin, bins
    after it), the number of bins, zeros int32 [lanes].  Items: whole vectors."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, tables, scaling, sizes, zeros = b.kernel(5)
    kind, whole = vectors.kind, vector(vectors.lanes, "i32")
    factor, start, last = (vectors.number(b.at(scaling, FLOAT_NBYTES * i)) for i in range(3))
    none = splat(kind, f32(0.0))
    (bins,) = indices(b, sizes, 1)
    apart = b.mul(bins, FLOAT_NBYTES)
    own = [b.at(tables, b.mul(apart, table)) for table in range(TABLES)]
    loop = b.begin_while("%end", [(whole, b.load(whole, zeros))])
    value = b.load(kind, b.at(x, b.mul(loop.index, vectors.nbytes)))
    place = floor(b, target, vectors.lanes, b.op("fmul", kind, value, factor))
    place = b.op("fsub", kind, place, start)
    # Whatever the values are, counts stay within their tables.
    place = b.select(kind, b.compare("ogt", kind, place, none), place, none)
    place = b.select(kind, b.compare("olt", kind, place, last), place, last)
    place = b.cast("fptosi", kind, place, whole)
    for lane in range(vectors.lanes):
        index = b.as_index("i32", b.emit(f"extractelement {whole} {place}, i32 {lane}"))
        entry = b.at(own[lane % TABLES], b.mul(index, FLOAT_NBYTES))
        b.store("i32", b.op("add", "i32", b.load("i32", entry, align=4), "1"), entry, align=4)
    is_zero = b.compare("oeq", kind, value, none)
    ones = b.cast("zext", f"<{vectors.lanes} x i1>", is_zero, whole)
    (found,) = b.end_while(loop, [b.op("add", whole, loop.carried[0], ones)])
    b.store(whole, found, zeros)
    return b.finish()
