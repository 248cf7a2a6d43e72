"""Second moments of the windows of each channel, and of what stands beside them.

A part of the pixels is copied next to each other: for each pixel its taps, a value beside them, and
a one.  The products of any two of these are summed in float32 over the part, ``SIDE`` by ``SIDE``
in registers, and the sums added to float64.  Sums of integers below 256 are exact.
"""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import (
    FLOAT_NBYTES,
    POINTER_NBYTES,
    Vectors,
    indices,
    smaller,
)
from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import load

SIDE = 4
"""Rows and columns of the sums in registers."""

PART = 64
"""Pixels summed in float32: 64 squares of 255 are below 2**24."""

SIZES = 5
"""Taps, terms (taps and two, made a multiple of ``SIDE``), channels, channels of sums (whole
vectors), pixels.  int64."""


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
                own = b.at(room, b.mul(pixel, row))
                with b.loop("0", tap_count) as tap:
                    offset = b.load_index(b.at(taps, b.mul(tap, POINTER_NBYTES)))
                    taken = load(b, "float", piece, b.at(window, offset))
                    b.store(kind, taken, b.at(own, b.mul(tap, nbytes)))
                value = b.at(b.at(beside, at), b.mul(place, b.mul(channels, FLOAT_NBYTES)))
                last = b.at(own, b.mul(tap_count, nbytes))
                b.store(kind, load(b, "float", piece, value), last)
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
    b, wide = vectors.b, vector(vectors.lanes, "double")
    longer = b.cast("fpext", vectors.kind, values, wide)
    b.store(wide, b.op("fadd", wide, b.load(wide, pointer, align=8), longer), pointer, align=8)
