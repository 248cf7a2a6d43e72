"""Numbers rounded to integers, and to the steps of integers."""

from __future__ import annotations

from quantglow.backends.llvm.array_kernels.operands import FLOAT_NBYTES, Vectors, indices
from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.rounding import rint
from quantglow.backends.llvm.kernels.vector.vectors import Piece, load, store


def rounded(vectors: Vectors, value: Value, scale: Value, low: Value, high: Value) -> Value:
    """``clip(rint(value / scale), low, high) * scale``, NaN as ``low``."""
    b, kind = vectors.b, vectors.kind
    steps = _clipped(vectors, b.op("fdiv", kind, value, scale), low, high)
    return b.op("fmul", kind, steps, scale)


def _clipped(vectors: Vectors, steps: Value, low: Value, high: Value) -> Value:
    """``clip(rint(steps), low, high)``, NaN as ``low``."""
    b, kind = vectors.b, vectors.kind
    steps = rint(b, vectors.target, vectors.lanes, steps)
    steps = b.select(kind, b.compare("ogt", kind, steps, low), steps, low)
    return b.select(kind, b.compare("olt", kind, steps, high), steps, high)


def rounded_reals(target: Target) -> str:
    """Pointers: x, result, and scale, low, high.  Items: numbers."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, grid = b.kernel(3)
    scale, low, high = (vectors.number(b.at(grid, FLOAT_NBYTES * place)) for place in range(3))

    def round_some(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        value = load(b, "float", piece, b.at(x, at))
        store(b, "float", piece, rounded(vectors, value, scale, low, high), b.at(result, at))

    vectors.each("%begin", "%end", round_some)
    return b.finish()


def integers(target: Target) -> str:
    """Pointers: sums [rows, channels], bias int32, scales, (low, high, zero point), 8-bit result,
    number of channels; others float32, bounds less the zero point.  Items: rows."""
    return _integers(target, has_residual=False)


def integers_with_residual(target: Target) -> str:
    """``integers``, and three more: an 8-bit residual [rows, channels], the bits to turn in it, and
    float32 (what it is then less, ratio)."""
    return _integers(target, has_residual=True)


def _integers(target: Target, has_residual: bool) -> str:
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    lanes, kind, whole = vectors.lanes, vectors.kind, vector(vectors.lanes, "i32")
    pointers = b.kernel(9 if has_residual else 6)
    sums, bias, scales, bounds, result, sizes = pointers[:6]
    low, high, zero_point = (vectors.number(b.at(bounds, FLOAT_NBYTES * i)) for i in range(3))
    (channels,) = indices(b, sizes, 1)
    with b.loop("%begin", "%end") as row:

        def end_some(channel: Value, piece: Piece) -> None:
            place = b.add(b.mul(row, channels), channel)
            at, own = b.mul(channel, FLOAT_NBYTES), b.mul(place, FLOAT_NBYTES)
            total = b.cast("fptosi", kind, load(b, "float", piece, b.at(sums, own)), whole)
            total = b.op("add", whole, total, load(b, "i32", piece, b.at(bias, at)))
            scale = load(b, "float", piece, b.at(scales, at))
            value = b.op("fmul", kind, b.cast("sitofp", whole, total, kind), scale)
            if has_residual:
                residual, turn, less_and_ratio = pointers[6:]
                taken = load(b, "i8", piece, b.at(residual, place))
                turned = b.broadcast(lanes, "i8", b.load("i8", turn, align=1))
                taken = b.op("xor", vector(lanes, "i8"), taken, turned)
                longer = b.cast("zext", vector(lanes, "i8"), taken, whole)
                steps = b.cast("uitofp", whole, longer, kind)
                steps = b.op("fsub", kind, steps, vectors.number(less_and_ratio))
                ratio = vectors.number(b.at(less_and_ratio, FLOAT_NBYTES))
                value = b.op("fadd", kind, value, b.op("fmul", kind, steps, ratio))
            value = b.op("fadd", kind, _clipped(vectors, value, low, high), zero_point)
            found = b.cast(
                "trunc", whole, b.cast("fptosi", kind, value, whole), vector(lanes, "i8")
            )
            store(b, "i8", piece, found, b.at(result, place))

        vectors.each("0", channels, end_some)
    return b.finish()
