"""Sine, cosine, arc tangent and the remainder of float32 vectors, by way of float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.kernels.vector.math_functions import (
    clamp,
    literal,
    plus,
    polynomial,
    times,
)
from quantglow.codegen.llvm.values import DOUBLE, FLOAT, I1, I64, Type, Value, splat, vector

_PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")

_LARGE = 32
"""Exponent from which on an angle is an integer times a power of two whose remainder is known."""
_BLOCK = 16
"""Number of exponents that share such a power."""

_MAGIC = 1.5 * 2.0**52
"""Adding it rounds a float64 of magnitude below 2^51 to an integer in the lowest bits."""
_TAN_PI_8 = math.tan(math.pi / 8)
_SINE = [(-1) ** i / math.factorial(2 * i + 1) for i in range(7)]
_COSINE = [(-1) ** i / math.factorial(2 * i) for i in range(8)]
_ATAN = [(-1) ** i / (2 * i + 1) for i in range(12)]

_SIGN = -(2**63)


def parts(value: Fraction, grids: Sequence[int]) -> list[float]:
    """Floats whose sum is ``value``: multiples of 2 to the power of each grid, and the rest."""
    leading = []
    for grid in grids:
        part = round(value / Fraction(2) ** grid) * Fraction(2) ** grid
        leading.append(float(part))
        value -= part
    return [*leading, float(value)]


_HALF_PI = parts(_PI / 2, (-11, -23, -35, -47))
"""Parts of at most 12 bits: their products with an integer below 2^41 are exact."""
_REMAINDERS = {
    exponent: parts((2**exponent + _PI) % (2 * _PI) - _PI, (-23, -49))
    for exponent in range(_LARGE - 23, 128 - 23, _BLOCK)
}
"""Exponent of 2 -> that power without multiples of 2 pi, in parts whose products with a float32 are
exact."""


def sin(b: Builder, lanes: int, x: Value) -> Value:
    """The sine, to 1e-7; zeros keep their sign."""
    kind = vector(lanes, FLOAT)
    zero = b.compare("oeq", kind, x, splat(kind, literal(kind, 0.0)))
    return b.select(kind, zero, x, _wave(b, lanes, x, 0))


def cos(b: Builder, lanes: int, x: Value) -> Value:
    """The cosine, to 1e-7."""
    return _wave(b, lanes, x, 1)


def _wave(b: Builder, lanes: int, x: Value, shift: int) -> Value:
    """sin(x + shift pi/2): the sine or cosine of r, x = n pi/2 + r, with the sign that n gives."""
    kind, ints = vector(lanes, DOUBLE), vector(lanes, I64)
    high, middle, low = _reduce(b, lanes, _widen(b, lanes, x))
    first, r = _quarter_turns(b, kind, high, high)
    r = b.op("fadd", kind, r, low)
    second, reduced = _quarter_turns(b, kind, b.op("fadd", kind, r, middle), middle)
    r = b.op("fadd", kind, reduced, r)
    r = clamp(b, kind, r, -math.pi / 4, math.pi / 4)
    square = b.op("fmul", kind, r, r)
    sine = b.op("fmul", kind, r, polynomial(b, kind, square, _SINE))
    cosine = polynomial(b, kind, square, _COSINE)
    quadrant = b.op("add", ints, first, second)
    quadrant = b.op("add", ints, quadrant, splat(ints, str(shift)))
    value = b.select(kind, _bit(b, ints, quadrant, 1), cosine, sine)
    negated = b.negate(value)
    return _narrow(b, lanes, b.select(kind, _bit(b, ints, quadrant, 2), negated, value))


def _reduce(b: Builder, lanes: int, x: Value) -> list[Value]:
    """Three terms whose sum is x without multiples of 2 pi: below 2^41, below 2^16, a small one.

    A large x is 2^e y with an integer y: the terms are y times the parts of 2^e mod 2 pi.
    """
    kind = vector(lanes, DOUBLE)
    size = _magnitude(b, lanes, x)
    factors = [splat(kind, literal(kind, v)) for v in (1.0, 1.0, 0.0, 0.0)]
    for exponent, remainders in _REMAINDERS.items():
        least = splat(kind, literal(kind, 2.0 ** (exponent + 23)))
        large = b.compare("oge", kind, size, least)
        others = [splat(kind, literal(kind, v)) for v in (2.0**-exponent, *remainders)]
        factors = [b.select(kind, large, o, f) for o, f in zip(others, factors, strict=True)]
    y = b.op("fmul", kind, x, factors[0])
    return [b.op("fmul", kind, y, factor) for factor in factors[1:]]


def _quarter_turns(b: Builder, kind: Type, angle: Value, term: Value) -> tuple[Value, Value]:
    """``term`` without the quarter turns n nearest to ``angle``, and n in the lowest bits."""
    shifted = plus(b, kind, times(b, kind, angle, 2 / math.pi), _MAGIC)
    n = plus(b, kind, shifted, -_MAGIC)
    for part in _HALF_PI:
        term = b.op("fsub", kind, term, times(b, kind, n, part))
    return b.cast("bitcast", kind, shifted, kind.with_element(I64)), term


def _bit(b: Builder, ints: Type, value: Value, mask: int) -> Value:
    return b.compare("ne", ints, b.op("and", ints, value, splat(ints, str(mask))), splat(ints, "0"))


def atan(b: Builder, lanes: int, x: Value) -> Value:
    """pi/2 - atan(1/x) above 1, pi/4 + atan((x - 1) / (x + 1)) above tan(pi/8), else a series."""
    kind = vector(lanes, DOUBLE)
    wide = _widen(b, lanes, x)
    size = _magnitude(b, lanes, wide)
    one = splat(kind, literal(kind, 1.0))
    large = b.compare("ogt", kind, size, one)
    t = b.select(kind, large, b.op("fdiv", kind, one, size), size)
    middle = b.compare("ogt", kind, t, splat(kind, literal(kind, _TAN_PI_8)))
    ratio = b.op("fdiv", kind, plus(b, kind, t, -1.0), plus(b, kind, t, 1.0))
    u = b.select(kind, middle, ratio, t)
    series = b.op("fmul", kind, u, polynomial(b, kind, b.op("fmul", kind, u, u), _ATAN))
    value = b.select(kind, middle, plus(b, kind, series, math.pi / 4), series)
    complement = b.op("fsub", kind, splat(kind, literal(kind, math.pi / 2)), value)
    return _narrow(b, lanes, _apply_sign(b, lanes, b.select(kind, large, complement, value), wide))


def remainder(b: Builder, lanes: int, x: Value, y: Value) -> Value:
    """``fmod``, as ``functions._float_remainder`` computes it, step by step."""
    kind = vector(lanes, DOUBLE)
    wide = _widen(b, lanes, x)
    size, divisor = _magnitude(b, lanes, wide), _magnitude(b, lanes, _widen(b, lanes, y))
    quotient = _truncate(b, lanes, b.op("fdiv", kind, size, divisor))
    result = b.op("fsub", kind, size, b.op("fmul", kind, divisor, quotient))
    zero, infinity = (splat(kind, literal(kind, v)) for v in (0.0, math.inf))
    more = b.op("fadd", kind, result, divisor)
    result = b.select(kind, b.compare("olt", kind, result, zero), more, result)
    less = b.op("fsub", kind, result, divisor)
    result = b.select(kind, b.compare("oge", kind, result, divisor), less, result)
    bits = vector(lanes, I1)
    finite = b.compare("olt", kind, size, infinity)
    whole = b.op("and", bits, b.compare("oeq", kind, divisor, infinity), finite)
    return _narrow(b, lanes, _apply_sign(b, lanes, b.select(kind, whole, size, result), wide))


def _truncate(b: Builder, lanes: int, value: Value) -> Value:
    """A float64 >= 0 without its fraction; one of 2^52 or more has none."""
    kind = vector(lanes, DOUBLE)
    large = splat(kind, literal(kind, 2.0**52))
    nearest = b.op("fsub", kind, b.op("fadd", kind, value, large), large)
    above = b.compare("ogt", kind, nearest, value)
    whole = b.select(kind, above, plus(b, kind, nearest, -1.0), nearest)
    return b.select(kind, b.compare("olt", kind, value, large), whole, value)


def _widen(b: Builder, lanes: int, x: Value) -> Value:
    return b.cast("fpext", vector(lanes, FLOAT), x, vector(lanes, DOUBLE))


def _narrow(b: Builder, lanes: int, x: Value) -> Value:
    return b.cast("fptrunc", vector(lanes, DOUBLE), x, vector(lanes, FLOAT))


def _magnitude(b: Builder, lanes: int, x: Value) -> Value:
    kind, ints = vector(lanes, DOUBLE), vector(lanes, I64)
    cleared = b.op("and", ints, b.cast("bitcast", kind, x, ints), splat(ints, str(2**63 - 1)))
    return b.cast("bitcast", ints, cleared, kind)


def _apply_sign(b: Builder, lanes: int, magnitude: Value, sign: Value) -> Value:
    """``magnitude`` (perhaps -0) with the sign of ``sign``."""
    kind, ints = vector(lanes, DOUBLE), vector(lanes, I64)
    top = b.op("and", ints, b.cast("bitcast", kind, sign, ints), splat(ints, str(_SIGN)))
    magnitude_bits = b.cast("bitcast", kind, _magnitude(b, lanes, magnitude), ints)
    return b.cast("bitcast", ints, b.op("or", ints, magnitude_bits, top), kind)
