"""Sine, cosine, arc tangent and the remainder of float32 vectors, by way of float64."""

from __future__ import annotations

import math

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.kernels.vector.mathfun import (
    limited,
    literal,
    plus,
    polynomial,
    scaled,
)

_HALF_PI_HIGH = float.fromhex("0x1.921FB544p0")
"""33 bits of pi / 2, so that its product with a small integer is exact."""
_HALF_PI_LOW = 6.077100506506192e-11
_MAGIC = 1.5 * 2.0**52
"""Adding it rounds a float64 of magnitude below 2^51 to an integer in the lowest bits."""
_TAN_PI_8 = math.tan(math.pi / 8)
_SINE = [(-1) ** i / math.factorial(2 * i + 1) for i in range(7)]
_COSINE = [(-1) ** i / math.factorial(2 * i) for i in range(8)]
_ATAN = [(-1) ** i / (2 * i + 1) for i in range(12)]


def sin(b: Builder, lanes: int, x: Value) -> Value:
    """The sine, to 1e-7 for |x| < 10^9."""
    return _wave(b, lanes, x, 0)


def cos(b: Builder, lanes: int, x: Value) -> Value:
    """The cosine, to 1e-7 for |x| < 10^9."""
    return _wave(b, lanes, x, 1)


def _wave(b: Builder, lanes: int, x: Value, shift: int) -> Value:
    """sin(x + shift pi/2): the sine or cosine of r, x = n pi/2 + r, with the sign that n gives."""
    kind, ints = vector(lanes, "double"), vector(lanes, "i64")
    wide = _widened(b, lanes, x)
    shifted = plus(b, kind, scaled(b, kind, wide, 2 / math.pi), _MAGIC)
    n = plus(b, kind, shifted, -_MAGIC)
    r = b.op("fsub", kind, wide, scaled(b, kind, n, _HALF_PI_HIGH))
    r = b.op("fsub", kind, r, scaled(b, kind, n, _HALF_PI_LOW))
    r = limited(b, kind, r, -math.pi / 4, math.pi / 4)
    square = b.op("fmul", kind, r, r)
    sine = b.op("fmul", kind, r, polynomial(b, kind, square, _SINE))
    cosine = polynomial(b, kind, square, _COSINE)
    quadrant = b.cast("bitcast", kind, shifted, ints)
    quadrant = b.op("add", ints, quadrant, splat(ints, str(shift)))
    value = b.select(kind, _bit(b, ints, quadrant, 1), cosine, sine)
    negated = b.emit(f"fneg {kind} {value}")
    return _narrowed(b, lanes, b.select(kind, _bit(b, ints, quadrant, 2), negated, value))


def _bit(b: Builder, ints: str, value: Value, mask: int) -> Value:
    return b.compare("ne", ints, b.op("and", ints, value, splat(ints, str(mask))), splat(ints, "0"))


def atan(b: Builder, lanes: int, x: Value) -> Value:
    """pi/2 - atan(1/x) above 1, pi/4 + atan((x - 1) / (x + 1)) above tan(pi/8), else a series."""
    kind = vector(lanes, "double")
    wide = _widened(b, lanes, x)
    size = _magnitude(b, lanes, wide)
    one = splat(kind, literal(kind, 1.0))
    large = b.compare("ogt", kind, size, one)
    t = b.select(kind, large, b.op("fdiv", kind, one, size), size)
    middle = b.compare("ogt", kind, t, splat(kind, literal(kind, _TAN_PI_8)))
    ratio = b.op("fdiv", kind, plus(b, kind, t, -1.0), plus(b, kind, t, 1.0))
    u = b.select(kind, middle, ratio, t)
    series = b.op("fmul", kind, u, polynomial(b, kind, b.op("fmul", kind, u, u), _ATAN))
    value = b.select(kind, middle, plus(b, kind, series, math.pi / 4), series)
    rest = b.op("fsub", kind, splat(kind, literal(kind, math.pi / 2)), value)
    return _narrowed(b, lanes, _signed(b, lanes, b.select(kind, large, rest, value), wide))


def remainder(b: Builder, lanes: int, x: Value, y: Value) -> Value:
    """``fmod``, as ``functions._float_remainder`` computes it, step by step."""
    kind = vector(lanes, "double")
    wide = _widened(b, lanes, x)
    size, divisor = _magnitude(b, lanes, wide), _magnitude(b, lanes, _widened(b, lanes, y))
    quotient = _truncated(b, lanes, b.op("fdiv", kind, size, divisor))
    rest = b.op("fsub", kind, size, b.op("fmul", kind, divisor, quotient))
    zero, infinity = (splat(kind, literal(kind, v)) for v in (0.0, math.inf))
    more = b.op("fadd", kind, rest, divisor)
    rest = b.select(kind, b.compare("olt", kind, rest, zero), more, rest)
    less = b.op("fsub", kind, rest, divisor)
    rest = b.select(kind, b.compare("oge", kind, rest, divisor), less, rest)
    bits = vector(lanes, "i1")
    finite = b.compare("olt", kind, size, infinity)
    whole = b.op("and", bits, b.compare("oeq", kind, divisor, infinity), finite)
    return _narrowed(b, lanes, _signed(b, lanes, b.select(kind, whole, size, rest), wide))


def _truncated(b: Builder, lanes: int, value: Value) -> Value:
    """A float64 >= 0 without its fraction; one of 2^52 or more has none."""
    kind = vector(lanes, "double")
    large = splat(kind, literal(kind, 2.0**52))
    nearest = b.op("fsub", kind, b.op("fadd", kind, value, large), large)
    above = b.compare("ogt", kind, nearest, value)
    whole = b.select(kind, above, plus(b, kind, nearest, -1.0), nearest)
    return b.select(kind, b.compare("olt", kind, value, large), whole, value)


def _widened(b: Builder, lanes: int, x: Value) -> Value:
    return b.cast("fpext", vector(lanes, "float"), x, vector(lanes, "double"))


def _narrowed(b: Builder, lanes: int, x: Value) -> Value:
    return b.cast("fptrunc", vector(lanes, "double"), x, vector(lanes, "float"))


_SIGN = -(2**63)


def _magnitude(b: Builder, lanes: int, x: Value) -> Value:
    kind, ints = vector(lanes, "double"), vector(lanes, "i64")
    cleared = b.op("and", ints, b.cast("bitcast", kind, x, ints), splat(ints, str(2**63 - 1)))
    return b.cast("bitcast", ints, cleared, kind)


def _signed(b: Builder, lanes: int, magnitude: Value, sign: Value) -> Value:
    """``magnitude`` (perhaps -0) with the sign of ``sign``."""
    kind, ints = vector(lanes, "double"), vector(lanes, "i64")
    top = b.op("and", ints, b.cast("bitcast", kind, sign, ints), splat(ints, str(_SIGN)))
    rest = b.cast("bitcast", kind, _magnitude(b, lanes, magnitude), ints)
    return b.cast("bitcast", ints, b.op("or", ints, rest, top), kind)
