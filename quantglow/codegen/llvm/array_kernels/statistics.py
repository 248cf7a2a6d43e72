"""Statistics of arrays: extremes, counts in bins of equal width, second moments of windows.

Second moments are those of the windows of each channel and of a value beside each window.  A part
of the pixels is copied next to each other: for each pixel its taps, the value beside them, and a
one.  The products of any two of these are summed in float32 over the part, ``SIDE`` by ``SIDE`` in
registers, and the sums added to float64.  Sums of integers below 256 are exact.
"""

from __future__ import annotations

from quantglow.codegen.llvm.array_kernels.elements import (
    FLOAT_NBYTES,
    POINTER_NBYTES,
    Vectors,
    indices,
    smaller,
)
from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, bits, floor, load, store
from quantglow.codegen.llvm.values import DOUBLE, FLOAT, I1, I32, Value, f32, splat, vector

TABLES = 4
"""Tables of counts that take turns: after a ReLU half of the values are in one bin, and a count
waits for the one before."""

MAGNITUDE = 0x7FFFFFFF
"""The bits of a float32 without its sign; they grow with it, and are largest for NaN."""

SIDE = 4
"""Rows and columns of the sums of moments in registers."""

PART = 64
"""Pixels whose moments are summed in float32: 64 squares of 255 are below 2**24."""

SIZES = 5
"""Sizes of second moments: taps, terms (taps and two, made a multiple of ``SIDE``), channels,
channels of sums (whole vectors), pixels.  int64."""


def extremes(target: Target) -> str:
    """Pointers: x, result [3, lanes]: smallest and largest numbers, largest bits of magnitudes.
    Items: whole vectors, at least one."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result = b.kernel(2)
    kind, whole = vectors.kind, vector(vectors.lanes, I32)
    first = b.load(kind, x)
    start = [(kind, first), (kind, first), (whole, "zeroinitializer")]
    loop = b.begin_while("%end", start)
    value = b.load(kind, b.at(x, b.mul(loop.index, vectors.nbytes)))
    low, high, magnitude = loop.carried
    low = b.select(kind, b.compare("olt", kind, value, low), value, low)
    high = b.select(kind, b.compare("ogt", kind, value, high), value, high)
    magnitudes = b.op("and", whole, bits(b, vectors.lanes, value), splat(whole, str(MAGNITUDE)))
    magnitude = b.select(
        whole, b.compare("sgt", whole, magnitudes, magnitude), magnitudes, magnitude
    )
    for place, (extreme, (of, _)) in enumerate(
        zip(b.end_while(loop, [low, high, magnitude]), start, strict=True)
    ):
        b.store(of, extreme, b.at(result, place * vectors.nbytes))
    return b.finish()


def reaches(target: Target) -> str:
    """Pointers: x [rows, columns], bits of float32 [columns], the number of columns.  Items: rows.
    The bits become those of the largest magnitude, where that is larger."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, sizes = b.kernel(3)
    whole = vector(vectors.lanes, I32)
    (columns,) = indices(b, sizes, 1)
    with b.loop("%begin", "%end") as row:
        start = b.at(x, b.mul(b.mul(row, columns), FLOAT_NBYTES))

        def widen(column: Value, piece: Piece) -> None:
            at = b.mul(column, FLOAT_NBYTES)
            value = load(b, I32, piece, b.at(start, at))
            value = b.op("and", whole, value, splat(whole, str(MAGNITUDE)))
            earlier = load(b, I32, piece, b.at(result, at))
            larger = b.select(whole, b.compare("sgt", whole, value, earlier), value, earlier)
            store(b, I32, piece, larger, b.at(result, at))

        vectors.each("0", columns, widen)
    return b.finish()


def counts(target: Target) -> str:
    """Pointers: x, tables of int32 [TABLES, bins], float32 (factor, index of the first bin, bins
    after it), the number of bins, zeros int32 [lanes].  Items: whole vectors."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, tables, scaling, sizes, zeros = b.kernel(5)
    kind, whole = vectors.kind, vector(vectors.lanes, I32)
    factor, start, last = (vectors.number(b.at(scaling, FLOAT_NBYTES * i)) for i in range(3))
    none = splat(kind, f32(0.0))
    (bins,) = indices(b, sizes, 1)
    apart = b.mul(bins, FLOAT_NBYTES)
    counters = [b.at(tables, b.mul(apart, table)) for table in range(TABLES)]
    loop = b.begin_while("%end", [(whole, b.load(whole, zeros))])
    value = b.load(kind, b.at(x, b.mul(loop.index, vectors.nbytes)))
    place = floor(b, target, vectors.lanes, b.op("fmul", kind, value, factor))
    place = b.op("fsub", kind, place, start)
    # Whatever the values are, counts stay within their tables.
    place = b.select(kind, b.compare("ogt", kind, place, none), place, none)
    place = b.select(kind, b.compare("olt", kind, place, last), place, last)
    place = b.cast("fptosi", kind, place, whole)
    for lane in range(vectors.lanes):
        index = b.as_index(I32, b.extract(place, lane))
        entry = b.at(counters[lane % TABLES], b.mul(index, FLOAT_NBYTES))
        b.store(I32, b.op("add", I32, b.load(I32, entry, align=4), "1"), entry, align=4)
    is_zero = b.compare("oeq", kind, value, none)
    ones = b.cast("zext", vector(vectors.lanes, I1), is_zero, whole)
    (zero_counts,) = b.end_while(loop, [b.op("add", whole, loop.carried[0], ones)])
    b.store(whole, zero_counts, zeros)
    return b.finish()


def depthwise_moments(target: Target) -> str:
    """Pointers: x, beside [pixels, channels], offsets of pixels, offsets of taps, sizes, room
    [PART, terms] for a vector of each, and sums float64 [terms, terms, channels], of which the
    blocks on and above the diagonal are added to.  Items: vectors of channels."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, beside, offsets, taps, sizes, room, results = b.kernel(7)
    tap_count, terms, channels, width, pixels = indices(b, sizes, SIZES)
    kind, nbytes = vectors.kind, vectors.nbytes
    row = b.mul(terms, nbytes)
    with b.loop("%begin", "%end") as block:
        channel = b.mul(block, vectors.lanes)
        at = b.mul(channel, FLOAT_NBYTES)
        piece = vectors.within(b.op("sub", b.index, channels, channel))
        with b.loop("0", pixels, PART) as first:
            count = smaller(b, b.op("sub", b.index, pixels, first), str(PART))
            with b.loop("0", count) as pixel:
                place = b.add(first, pixel)
                window = b.at(
                    b.at(x, at), b.load_index(b.at(offsets, b.mul(place, POINTER_NBYTES)))
                )
                pixel_terms = b.at(room, b.mul(pixel, row))
                with b.loop("0", tap_count) as tap:
                    offset = b.load_index(b.at(taps, b.mul(tap, POINTER_NBYTES)))
                    pixel_values = load(b, FLOAT, piece, b.at(window, offset))
                    b.store(kind, pixel_values, b.at(pixel_terms, b.mul(tap, nbytes)))
                value = b.at(b.at(beside, at), b.mul(place, b.mul(channels, FLOAT_NBYTES)))
                last = b.at(pixel_terms, b.mul(tap_count, nbytes))
                b.store(kind, load(b, FLOAT, piece, value), last)
                b.store(kind, splat(kind, f32(1.0)), b.at(last, nbytes))
            with b.loop("0", terms, SIDE) as left, b.loop(left, terms, SIDE) as right:
                sums = _sums(vectors, room, row, count, (left, right))
                for index, total in enumerate(sums):
                    line = b.add(left, index // SIDE)
                    entry = b.add(b.mul(line, terms), b.add(right, index % SIDE))
                    place = b.add(b.mul(entry, width), channel)
                    _add(vectors, total, b.at(results, b.mul(place, 2 * FLOAT_NBYTES)))
    return b.finish()


def _sums(
    vectors: Vectors, room: Value, row: Value, count: Value, corner: tuple[Value, Value]
) -> list[Value]:
    """Sums over pixels of products of ``SIDE`` terms and ``SIDE`` others, from a corner on."""
    b, kind, nbytes = vectors.b, vectors.kind, vectors.nbytes
    starts = [b.at(room, b.mul(term, nbytes)) for term in corner]
    loop = b.begin_while(count, [(kind, "zeroinitializer")] * SIDE**2)
    at = b.mul(loop.index, row)
    lines, columns = (
        [b.load(kind, b.at(b.at(start, at), place * nbytes)) for place in range(SIDE)]
        for start in starts
    )
    pairs = [(line, column) for line in lines for column in columns]
    return b.end_while(
        loop,
        [
            vectors.multiply_add(line, column, total)
            for (line, column), total in zip(pairs, loop.carried, strict=True)
        ],
    )


def _add(vectors: Vectors, values: Value, pointer: Value) -> None:
    """Add a vector of float32 to float64 in memory."""
    b, wide = vectors.b, vector(vectors.lanes, DOUBLE)
    longer = b.cast("fpext", vectors.kind, values, wide)
    b.store(wide, b.op("fadd", wide, b.load(wide, pointer, align=8), longer), pointer, align=8)
