"""Vector operations of all kernels: moves, packs, rounding, division by a constant.

Values of ``lanes`` 1 are scalars.  Nothing here becomes a call of the C library on any target.

Division by a constant takes three multiplications and is rounded as the division is.  With
``y = RN(1 / c)`` and ``q = RN(x y)`` the remainder ``r = x - c q`` is known exactly, and
``RN(q + r y) = RN(x / c)`` (Markstein 1990, "Computation of elementary functions on the IBM RISC
System/6000 processor").  In short: the sum before the last rounding is wrong by ``|c y - 1|``
times the error of q.  With c in [1, 2) that is less than ``c 2**-26`` units in the last place
where x / c is close to the middle of two floats, and x / c, a fraction of 24-bit integers, is
never closer to it than ``2**-24 / c``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.values import (
    FLOAT,
    I1,
    I8,
    I16,
    I32,
    I64,
    Operand,
    Type,
    Value,
    f32,
    integer,
    lanes_of_bits,
    splat,
    vector,
)
from quantglow.ir.symbolic.size import Dim, Size
from quantglow.ir.types import DType

ELEMENTS = {DType.F32: FLOAT, DType.I8: I8, DType.U8: I8, DType.I16: I16, DType.I32: I32,
            DType.I64: I64, DType.BOOL: I8}  # fmt: skip
"""LLVM type in memory of each element type."""

TWO_POW_23 = 8388608.0
"""float32 values at least this large are integers."""

SMALLEST, LARGEST = 2.0**-60, 2.0**60
"""Between these no intermediate result overflows, and none that matters loses bits."""
MOST_STEPS = 2.0**20
"""Larger limits would not be what their bounds round to."""


@dataclass(frozen=True)
class Piece:
    """``active`` elements from ``start`` of a row, in a vector of ``lanes`` (masked if more).

    ``active`` is a number, or the mask of the first lanes where their number is free.
    """

    start: int
    lanes: int
    active: int | Value

    @property
    def count(self) -> int:
        """The number of elements, where it is known."""
        assert isinstance(self.active, int)
        return self.active


def pieces(target: Target, start: int, stop: int, lanes: int) -> Iterator[Piece]:
    """Cover ``start`` to ``stop`` with vectors of ``lanes``, then a tail.

    The tail is one masked vector where the target has masks and two narrower ones do not do, else
    narrower vectors and scalars: a masked store delays later loads of the bytes it leaves alone,
    which in place belong to the next row.
    """
    while stop - start >= lanes:
        yield Piece(start, lanes, lanes)
        start += lanes
    if target.isa.has_masks and stop - start > 1 and not _two_vectors(stop - start):
        yield Piece(start, lanes, stop - start)
        return
    while start < stop:
        lanes = narrower(lanes, stop - start)
        yield Piece(start, lanes, lanes)
        start += lanes


def _two_vectors(count: int) -> bool:
    """Whether one or two plain vectors hold ``count`` elements."""
    return count % 4 == 0 and count.bit_count() <= 2


def narrower(lanes: int, room: Dim) -> int:
    """The widest vector not wider than ``lanes`` that fits ``room``; scalars below 4 lanes.

    A free length has vectors of any width: what does not fill them is computed in narrower ones.
    """
    if isinstance(room, Size):
        return lanes
    while lanes > room:
        lanes //= 2
    return lanes if lanes >= 4 else 1


def split_masked(group: Sequence[Piece]) -> list[Piece]:
    """Pieces without masks: a masked tail becomes narrower vectors."""
    parts: list[Piece] = []
    for piece in group:
        start, stop = piece.start, piece.start + piece.count
        while start < stop:
            lanes = narrower(piece.lanes, stop - start)
            parts.append(replace(piece, start=start, lanes=lanes, active=lanes))
            start += lanes
    return parts


# -- memory


def load(b: Builder, element: Type, piece: Piece, pointer: Value) -> Value:
    """A vector of which the lanes beyond ``active`` are not read from memory (and are zero)."""
    if piece.active == piece.lanes:
        return b.load(vector(piece.lanes, element), pointer)
    kind, mask = vector(piece.lanes, element), vector(piece.lanes, I1)
    name = f"llvm.masked.load.{vector(piece.lanes, element).suffix}.p0"
    return b.call(
        name, kind, ("ptr align 1", pointer), (mask, _mask(piece)), (kind, "zeroinitializer")
    )


def store(b: Builder, element: Type, piece: Piece, value: Operand, pointer: Value) -> None:
    """Write the active lanes."""
    kind = vector(piece.lanes, element)
    if piece.active == piece.lanes:
        b.store(kind, value, pointer)
        return
    name = f"llvm.masked.store.{vector(piece.lanes, element).suffix}.p0"
    mask = (vector(piece.lanes, I1), _mask(piece))
    b.do_call(name, (kind, value), ("ptr align 1", pointer), mask)


def first_lanes(b: Builder, lanes: int, count: Operand) -> Value:
    """The mask of the first lanes of a vector; ``count`` is an index."""
    kind = vector(lanes, I32)
    numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
    limit = b.broadcast(lanes, I32, b.as_int(count))
    return b.compare("slt", kind, f"<{numbers}>", limit)


def _mask(piece: Piece) -> Value:
    if isinstance(piece.active, Value):
        return piece.active
    return lanes_of_bits(i < piece.count for i in range(piece.lanes))


# -- integers


def widen(b: Builder, lanes: int, element: Type, value: Value, signed: bool) -> Value:
    """Integers of 8 or 16 bits as int32 lanes; int32 stays."""
    if element == I32:
        return value
    extend = "sext" if signed else "zext"
    return b.cast(extend, vector(lanes, element), value, vector(lanes, I32))


def narrow(b: Builder, lanes: int, value: Value, element: Type) -> Value:
    """int32 lanes, known to fit, as ``element``."""
    if element == I32:
        return value
    return b.cast("trunc", vector(lanes, I32), value, vector(lanes, element))


def pack_bytes(b: Builder, target: Target, values: Sequence[Value], signed: bool) -> Value:
    """Four int32 vectors, saturated to bytes, as one vector of bytes in order."""
    isa = target.isa
    words = [isa.pack_words(b, values[i], values[i + 1]) for i in (0, 2)]
    return in_order(b, isa, isa.pack_bytes(b, words[0], words[1], signed))


def packed_place(isa: InstructionSet, index: int) -> int:
    """The byte where packs leave element ``index`` of four int32 vectors: a group of bytes is made
    of one group of each vector."""
    operand, lane = divmod(index, isa.vector_nbytes // 4)
    in_group = isa.group_nbytes // 4
    group, within = divmod(lane, in_group)
    return isa.group_nbytes * group + in_group * operand + within


def in_order(b: Builder, isa: InstructionSet, packed: Value) -> Value:
    """The bytes of four packed vectors, one vector after the other."""
    nbytes = isa.vector_nbytes
    if nbytes == isa.group_nbytes:
        return packed
    i32, i8 = vector(nbytes // 4, I32), vector(nbytes, I8)
    order = [packed_place(isa, 4 * i) // 4 for i in range(nbytes // 4)]
    mixed = b.cast("bitcast", i8, packed, i32)
    return b.cast("bitcast", i32, b.shuffle(i32, mixed, "poison", order), i8)


def center(b: Builder, lanes: int, value: Value, zero_point: int) -> Value:
    """int32 lanes minus a zero point."""
    if not zero_point:
        return value
    kind = vector(lanes, I32)
    return b.op("sub", kind, value, splat(kind, str(zero_point)))


def add_constant(b: Builder, lanes: int, value: Value, constant: int) -> Value:
    """int32 lanes plus a constant."""
    return center(b, lanes, value, -constant)


# -- float


def int_to_float(b: Builder, lanes: int, value: Value) -> Value:
    """int32 lanes as float32."""
    return b.cast("sitofp", vector(lanes, I32), value, vector(lanes, FLOAT))


def clip_float(b: Builder, lanes: int, value: Value, low: float, high: float) -> Value:
    """``fmin(fmax(value, low), high)``; NaN becomes ``low``."""
    kind = vector(lanes, FLOAT)
    return _min_constant(b, kind, max_constant(b, kind, value, low), high)


def max_constant(b: Builder, kind: Type, value: Value, low: float) -> Value:
    """``value`` if greater than ``low``, else (and for NaN) ``low``."""
    limit = splat(kind, f32(low))
    return b.select(kind, b.compare("ogt", kind, value, limit), value, limit)


def _min_constant(b: Builder, kind: Type, value: Value, high: float) -> Value:
    """``value`` if less than ``high``, else (and for NaN) ``high``."""
    limit = splat(kind, f32(high))
    return b.select(kind, b.compare("olt", kind, value, limit), value, limit)


def number_or_less(b: Builder, lanes: int, value: Value, high: float) -> Value:
    """``high`` where ``value`` is greater, else ``value``, also if that is NaN."""
    kind = vector(lanes, FLOAT)
    limit = splat(kind, f32(high))
    return b.select(kind, b.compare("ogt", kind, value, limit), limit, value)


def quantize_steps(
    b: Builder, target: Target, lanes: int, steps: Value, low: int, high: int, zero_point: int
) -> Value:
    """``arithmetic.saturate`` as int32 lanes.

    Clipping before rounding gives the same integers, since the bounds are integers, and keeps
    huge values within what the conversion can represent.
    """
    clipped = clip_float(b, lanes, steps, low - zero_point, high - zero_point)
    return add_constant(b, lanes, target.isa.round_number(b, lanes, clipped), zero_point)


def bits(b: Builder, lanes: int, value: Value) -> Value:
    """float32 lanes as the int32 lanes of the same bits."""
    return b.cast("bitcast", vector(lanes, FLOAT), value, vector(lanes, I32))


def from_bits(b: Builder, lanes: int, value: Value) -> Value:
    """int32 lanes as the float32 lanes of the same bits."""
    return b.cast("bitcast", vector(lanes, I32), value, vector(lanes, FLOAT))


def absolute(b: Builder, lanes: int, value: Value) -> Value:
    """``|value|`` of float32 lanes."""
    kind = vector(lanes, I32)
    cleared = b.op("and", kind, bits(b, lanes, value), splat(kind, str(0x7FFFFFFF)))
    return from_bits(b, lanes, cleared)


def copy_sign(b: Builder, lanes: int, magnitude: Value, sign: Value) -> Value:
    """``magnitude`` (not negative) with the sign of ``sign``."""
    kind = vector(lanes, I32)
    top = b.op("and", kind, bits(b, lanes, sign), splat(kind, str(-(2**31))))
    return from_bits(b, lanes, b.op("or", kind, bits(b, lanes, magnitude), top))


def literal(element: Type, value: float | int | np.generic) -> Value:
    """A constant of an element type as LLVM writes it."""
    return f32(float(value)) if element == FLOAT else integer(int(value), element)


def maximum(b: Builder, lanes: int, dtype: DType, x: Value, y: Value) -> Value:
    """The greater of two elements as stored; NaN if either is NaN."""
    return _extreme(b, lanes, dtype, x, y, ("maximum", "umax", "smax"))


def minimum(b: Builder, lanes: int, dtype: DType, x: Value, y: Value) -> Value:
    """The lesser of two elements as stored; NaN if either is NaN."""
    return _extreme(b, lanes, dtype, x, y, ("minimum", "umin", "smin"))


def _extreme(
    b: Builder, lanes: int, dtype: DType, x: Value, y: Value, names: tuple[str, str, str]
) -> Value:
    element = ELEMENTS[dtype]
    unsigned = dtype in (DType.U8, DType.BOOL)
    name = names[0] if dtype.is_float else names[1] if unsigned else names[2]
    kind = vector(lanes, element)
    return b.call(f"llvm.{name}.{vector(lanes, element).suffix}", kind, (kind, x), (kind, y))


def rint(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """Rounded half to even, any float32."""
    return _round(b, target, lanes, value, "rint")


def floor(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """The largest integer not above, any float32."""
    return _round(b, target, lanes, value, "floor")


def ceil(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """The smallest integer not below, any float32."""
    return _round(b, target, lanes, value, "ceil")


def _round(b: Builder, target: Target, lanes: int, value: Value, how: str) -> Value:
    kind = vector(lanes, FLOAT)
    if target.isa.rounds_floats:
        return b.call(f"llvm.{how}.{vector(lanes, FLOAT).suffix}", kind, (kind, value))
    # Without an instruction LLVM would call libm.  Adding 2^23 to |x| < 2^23 leaves no fraction
    # bits, so the addition itself rounds half to even.
    magnitude = absolute(b, lanes, value)
    large = splat(kind, f32(TWO_POW_23))
    nearest = b.op("fsub", kind, b.op("fadd", kind, magnitude, large), large)
    nearest = copy_sign(b, lanes, nearest, value)
    if how != "rint":
        nearest = copy_sign(
            b, lanes, absolute(b, lanes, _correct(b, kind, nearest, value, how)), value
        )
    small = b.compare("olt", kind, magnitude, large)
    return b.select(kind, small, nearest, value)


def _correct(b: Builder, kind: Type, nearest: Value, value: Value, how: str) -> Value:
    """One less where rounding went above the value (floor), one more where below (ceil)."""
    predicate, operation = ("ogt", "fsub") if how == "floor" else ("olt", "fadd")
    moved = b.op(operation, kind, nearest, splat(kind, f32(1.0)))
    return b.select(kind, b.compare(predicate, kind, nearest, value), moved, nearest)


def divides_exactly(target: Target, divisor: float, limits: tuple[float, float]) -> bool:
    """Whether `quotient` is right for a divisor and quotients within ``limits``."""
    inside = all(abs(limit) < MOST_STEPS for limit in limits)
    return target.isa.has_fma and SMALLEST <= divisor <= LARGEST and inside


def quotient(
    b: Builder, lanes: int, x: Value, divisor: float, limits: tuple[float, float]
) -> Value:
    """``x / divisor``, or what rounds to an integer limit if beyond; NaN is low.

    Quotients below ``2**-60`` are only about right.
    """
    c = np.float32(divisor)
    # The bounds are off by half a unit in the last place: their quotients still round to the limit.
    low, high = (float(np.float32(limit) * c) for limit in limits)
    return _quotient(b, lanes, clip_float(b, lanes, x, low, high), divisor)


def quotient_at_most(b: Builder, lanes: int, x: Value, divisor: float, limit: float) -> Value:
    """``x / divisor``, or what rounds to an integer limit if greater; NaN stays, and so become
    negative quotients that float32 cannot hold.
    """
    high = float(np.float32(limit) * np.float32(divisor))
    return _quotient(b, lanes, number_or_less(b, lanes, x, high), divisor)


def _quotient(b: Builder, lanes: int, inside: Value, divisor: float) -> Value:
    kind, c = vector(lanes, FLOAT), np.float32(divisor)
    inverse = splat(kind, f32(float(np.float32(1) / c)))
    first = b.op("fmul", kind, inside, inverse)
    name = f"llvm.fma.{vector(lanes, FLOAT).suffix}"
    error = b.call(name, kind, (kind, first), (kind, splat(kind, f32(-divisor))), (kind, inside))
    return b.call(name, kind, (kind, error), (kind, inverse), (kind, first))
