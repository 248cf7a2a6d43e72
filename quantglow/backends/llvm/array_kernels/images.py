"""Lines of images as convolutions read them: float32, with zeros around."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS, Piece, load, store

IMAGE_SIZES = 7
"""Lines of an image of the result; lines of an image of x; lines above these; numbers before a line
of x; numbers of a line of x; numbers of a line of the result; bytes from one image of x to the
next.  int64."""


def padded(target: Target, element: str) -> str:
    """Pointers: x, result float32, sizes, and a zero point, float32.  Items: lines of all images of
    the result.  ``element``: the type of x, f32 or of 8 bits; f32 has no zero point."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, sizes, zero_points = b.kernel(4)
    height, own_height, top, left, count, width, pitch = indices(b, sizes, IMAGE_SIZES)
    nbytes = FLOAT_NBYTES if element == "f32" else 1
    zero_point = vectors.number(zero_points)

    with b.loop("%begin", "%end") as item:
        image = b.op("udiv", b.index, item, height)
        line = b.op("sub", b.index, b.op("sub", b.index, item, b.mul(image, height)), top)
        # Lines above wrap around to large numbers: one comparison does for both ends.
        is_there = b.compare("ult", b.index, line, own_height)
        stop = b.add(left, b.select(b.index, is_there, count, "0"))
        source = b.at(b.at(x, b.mul(image, pitch)), b.mul(b.mul(line, count), nbytes))
        own = b.at(result, b.mul(b.mul(item, width), FLOAT_NBYTES))

        def clear(index: Value, piece: Piece) -> None:
            store(b, "float", piece, "zeroinitializer", b.at(own, b.mul(index, FLOAT_NBYTES)))

        def copy(index: Value, piece: Piece) -> None:
            place = b.at(source, b.mul(b.op("sub", b.index, index, left), nbytes))
            value = load(b, ELEMENTS[element], piece, place)
            if element != "f32":
                value = _real(vectors, value, element)
                value = b.op("fsub", vectors.kind, value, zero_point)
            store(b, "float", piece, value, b.at(own, b.mul(index, FLOAT_NBYTES)))

        vectors.each("0", left, clear)
        vectors.each(left, stop, copy)
        vectors.each(stop, width, clear)
    return b.finish()


def _real(vectors: Vectors, value: Value, element: str) -> Value:
    """8-bit integers as float32."""
    b, whole = vectors.b, vector(vectors.lanes, "i32")
    extend = "zext" if element == "u8" else "sext"
    longer = b.cast(extend, vector(vectors.lanes, "i8"), value, whole)
    return b.cast("sitofp", whole, longer, vectors.kind)
