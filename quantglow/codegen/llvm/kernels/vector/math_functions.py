"""Transcendental functions of float32 vectors, as polynomials.

Only additions and multiplications that round once each, so that every target gives the same
floats.  The coefficients are least-maximum fits of the relative error, made for these intervals.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.values import (
    ABSENT,
    DOUBLE,
    FLOAT,
    I1,
    I32,
    I64,
    ConstantValue,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops.functions import EXP2, LEAST_POWER, LOG2_E, ROUNDING

_LN2_HIGH = 355 / 512
"""Few bits, so that its product with an exponent is exact."""
_LN2_LOW = math.log(2) - _LN2_HIGH
_MAGIC_BITS = 0x4B400000
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 2.0**-126

_EXP = (0.49999994, 0.16666515, 0.041668456, 0.00836942, 0.0013813142)
"""(exp(r) - 1 - r) / r^2 for |r| <= ln(2)/2; error 4e-9."""
_LOG = (0.3333331, -0.25000009, 0.20002167, -0.1666809, 0.14218552, -0.12403085, 0.118935287,
        -0.11694336, 0.067575373)  # fmt: skip
"""(log(1+f) - f + f^2/2) / f^3 for 1+f from sqrt(1/2) to sqrt(2); error 1e-9."""
_TANH = (-0.33333272, 0.13331152, -0.053714104, 0.020551708, -0.005603901)
"""(tanh(x) - x) / x^3 in x^2, for |x| <= 0.64; error 6e-9."""
_ERF = (1.1283791, -0.37612626, 0.11283585, -0.026853813, 0.0051883277, -0.0008010193, 7.853858e-05)
"""erf(x) / x in x^2, for |x| <= 1; error 2e-9."""
_LOG_ERFC = (0.00030043168, 1.1272514, 0.6378831, 0.10332732, -0.021940414, 0.0029724375,
             -0.00018882309)  # fmt: skip
"""-log(1 - erf(x)) for 1 <= x <= 4; error of erf 2e-9."""
_NDTR = (0.5, -0.6968291, 0.35639215, 0.06873088, -0.086275965, -0.035809007, -0.0046619344,
         0.054904543, -0.023500696)  # fmt: skip
"""exp(x^2 / 2) ndtr(-x) (3 + x) / 3 in x / (3 + x), for 0 <= x <= 12.9; error 4e-8."""
_NDTR_END = 12.9
"""Beyond it ndtr(-x) is below 2^-126."""
_GATE = (2 * math.sqrt(2 / math.pi) * LOG2_E, 2 * math.sqrt(2 / math.pi) * LOG2_E * 0.044715)
_GATE_HIGH = (37719 / 2**14, 13 / 2**7)
"""Factors of x and x^3 in the power of two of Gelu's tanh form, and their first bits."""
_GATE_ENDS = (-10.06, 10.0)
"""Below, the power is 2^128, which has the bits of infinity, and above it nothing beside 1."""
_EIGHTHS = 1.5 * 2.0**20
"""Adding it rounds to eighths."""
_INFINITE_POWER = 88.8
"""From here on exp(x) is infinite."""
_NO_SHARE = 64.0
"""From here on 2 / (exp(x) + 1) is nothing beside 1."""
_LINEAR = 2.0**-24
"""Below it expm1(x) is x."""

_SIMPLE_EXPONENTS: dict[float, tuple[int, ...]] = {
    0.25: (2,),
    0.5: (1,),
    0.75: (1, 2),
    1.0: (0,),
    1.5: (0, 1),
    2.0: (0, 0),
    3.0: (0, 0, 0),
}
"""Factors of a power: each is x after a number of square roots."""


def sqrt(b: Builder, lanes: int, x: Value) -> Value:
    """The square root, correctly rounded."""
    kind = vector(lanes, FLOAT)
    return b.call(f"llvm.sqrt.{'f32' if lanes == 1 else f'v{lanes}f32'}", kind, (kind, x))


def exp(b: Builder, lanes: int, x: Value) -> Value:
    """``e ** x``: 2^n (1 + r + r^2 P(r)) with x = n ln 2 + r."""
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    tail, exponent = _exp_tail(b, lanes, clamp(b, kind, x, -105.0, 90.0))
    value = plus(b, kind, tail, 1.0)
    # Two steps, so that results below the normal range lose bits instead of vanishing.
    half = b.op("ashr", ints, exponent, splat(ints, "1"))
    value = b.op("fmul", kind, value, _power_of_two(b, lanes, half))
    other_half = b.op("sub", ints, exponent, half)
    return b.op("fmul", kind, value, _power_of_two(b, lanes, other_half))


def logistic(b: Builder, lanes: int, x: Value) -> Value:
    """``1 / (1 + exp(x))``"""
    kind = vector(lanes, FLOAT)
    one, power = splat(kind, f32(1.0)), exp(b, lanes, x)
    return b.op("fdiv", kind, one, b.op("fadd", kind, one, power))


def logistic_above(b: Builder, lanes: int, x: Value) -> Value:
    """``logistic`` for x from the exponent of the smallest normal power on, or NaN.

    The power is twice 2^(n-1) (1 + ...): the second factor of ``exp`` is for subnormal results, and
    2^-127, which is 0 here, vanishes beside 1, too.
    """
    kind = vector(lanes, FLOAT)
    one, high = splat(kind, f32(1.0)), splat(kind, f32(_INFINITE_POWER))
    x = b.select(kind, b.compare("olt", kind, high, x), high, x)
    tail, exponent = _exp_tail(b, lanes, x)
    scale = _power_of_two(b, lanes, vectors.add_constant(b, lanes, exponent, -1))
    half = b.op("fmul", kind, plus(b, kind, tail, 1.0), scale)
    return b.op("fdiv", kind, one, b.op("fadd", kind, one, b.op("fadd", kind, half, half)))


def exp_negative(b: Builder, lanes: int, x: Value) -> Value:
    """``shrinking_power``; where n is -127 its power of two has no bits."""
    kind = vector(lanes, FLOAT)
    power, lowest = times(b, kind, x, LOG2_E), splat(kind, f32(LEAST_POWER))
    power = b.select(kind, b.compare("ogt", kind, lowest, power), lowest, power)
    shifted = plus(b, kind, power, ROUNDING)
    fraction = b.op("fsub", kind, power, plus(b, kind, shifted, -ROUNDING))
    return _scaled_power(b, lanes, fraction, shifted)


def _scaled_power(b: Builder, lanes: int, fraction: Value, shifted: Value) -> Value:
    """``2 ** (n + fraction)``, n in the lowest bits of a number to which ``ROUNDING`` was added."""
    kind = vector(lanes, FLOAT)
    value = polynomial(b, kind, fraction, EXP2)
    # The shift by 23 that makes it an exponent leaves nothing of the magic number.
    scale = _power_of_two(b, lanes, vectors.bits(b, lanes, shifted))
    return b.op("fmul", kind, value, scale)


def expm1(b: Builder, lanes: int, x: Value) -> Value:
    """``e ** x - 1``: 2^n q + (2^n - 1) with q = exp(r) - 1 and x = n ln 2 + r.

    Computed as twice 2^(n-1) q + (2^(n-1) - 1/2): 2^128 is no float32.  From -20 down it is -1, and
    near 0 it is x, with the sign of its zeros.
    """
    kind = vector(lanes, FLOAT)
    tail, exponent = _exp_tail(b, lanes, clamp(b, kind, x, -20.0, 89.0))
    half = _power_of_two(b, lanes, vectors.add_constant(b, lanes, exponent, -1))
    value = b.op("fadd", kind, b.op("fmul", kind, half, tail), plus(b, kind, half, -0.5))
    near = b.compare("olt", kind, vectors.absolute(b, lanes, x), splat(kind, f32(_LINEAR)))
    return b.select(kind, near, x, b.op("fadd", kind, value, value))


def _exp_tail(
    b: Builder, lanes: int, x: Value, correction: Value | None = None
) -> tuple[Value, Value]:
    """r + r^2 P(r) = exp(r) - 1 with x + correction = n ln 2 + r, and the int32 n.

    ``correction``: a small number.
    """
    kind = vector(lanes, FLOAT)
    shifted = plus(b, kind, times(b, kind, x, math.log2(math.e)), ROUNDING)
    n = plus(b, kind, shifted, -ROUNDING)
    r = b.op("fsub", kind, x, times(b, kind, n, _LN2_HIGH))
    r = b.op("fsub", kind, r, times(b, kind, n, _LN2_LOW))
    if correction is not None:
        r = b.op("fadd", kind, r, correction)
    square = b.op("fmul", kind, r, r)
    tail = b.op("fmul", kind, square, polynomial(b, kind, r, _EXP))
    exponent = vectors.center(b, lanes, vectors.bits(b, lanes, shifted), _MAGIC_BITS)
    return b.op("fadd", kind, r, tail), exponent


def log(b: Builder, lanes: int, x: Value) -> Value:
    """The natural logarithm of x = 2^n (1 + f)."""
    kind = vector(lanes, FLOAT)
    tiny = b.compare("olt", kind, x, splat(kind, f32(_SMALLEST_NORMAL)))
    normal = b.select(kind, tiny, times(b, kind, x, 2.0**23), x)
    exponent, f = _log_parts(b, lanes, normal)
    shift = b.select(kind, tiny, splat(kind, f32(-23.0)), splat(kind, f32(0.0)))
    n = b.op("fadd", kind, vectors.int_to_float(b, lanes, exponent), shift)
    return _logarithm_borders(b, kind, x, _log_sum(b, kind, n, f))


def log1p(b: Builder, lanes: int, x: Value) -> Value:
    """``log(1 + x)``: log of the rounded sum s = 2^n (1 + f), and to f is added what rounding took,
    x - (s - 1), divided by 2^n.  Both differences are exact, and f is x itself where n is 0."""
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    total = plus(b, kind, x, 1.0)
    exponent, f = _log_parts(b, lanes, total)
    lost = b.op("fsub", kind, x, plus(b, kind, total, -1.0))
    # The largest floats have n = 128: 2^(1 - n) is 0 there, as ``lost`` is.
    inverse = _power_of_two(b, lanes, b.op("sub", ints, splat(ints, "1"), exponent))
    lost = times(b, kind, b.op("fmul", kind, lost, inverse), 0.5)
    f = b.op("fadd", kind, f, lost)
    value = _log_sum(b, kind, vectors.int_to_float(b, lanes, exponent), f)
    # Zeros keep their sign; the signs of other results are those of x.
    return vectors.copy_sign(b, lanes, _logarithm_borders(b, kind, total, value), x)


def _log_parts(b: Builder, lanes: int, x: Value) -> tuple[Value, Value]:
    """The int32 n and f of a normal x = 2^n (1 + f), 1 + f from sqrt(1/2) to sqrt(2)."""
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    pattern = vectors.bits(b, lanes, x)
    exponent = vectors.center(b, lanes, pattern, _SQRT_HALF_BITS)
    exponent = b.op("ashr", ints, exponent, splat(ints, "23"))
    mantissa = b.op("sub", ints, pattern, b.op("shl", ints, exponent, splat(ints, "23")))
    return exponent, plus(b, kind, vectors.from_bits(b, lanes, mantissa), -1.0)


def _log_sum(b: Builder, kind: Type, n: Value, f: Value) -> Value:
    """n ln 2 + f - f^2/2 + f^3 P(f)"""
    square = b.op("fmul", kind, f, f)
    cube = b.op("fmul", kind, square, f)
    tail = b.op("fmul", kind, cube, polynomial(b, kind, f, _LOG))
    tail = b.op("fadd", kind, tail, times(b, kind, n, _LN2_LOW))
    tail = b.op("fsub", kind, tail, times(b, kind, square, 0.5))
    return b.op("fadd", kind, b.op("fadd", kind, f, tail), times(b, kind, n, _LN2_HIGH))


def _logarithm_borders(b: Builder, kind: Type, x: Value, value: Value) -> Value:
    """-inf at 0, inf at inf, NaN below 0."""
    zero, infinity = splat(kind, literal(kind, 0.0)), splat(kind, literal(kind, math.inf))
    nan = splat(kind, literal(kind, math.nan))
    outside = b.select(kind, b.compare("oeq", kind, x, infinity), infinity, nan)
    lowest = splat(kind, literal(kind, -math.inf))
    outside = b.select(kind, b.compare("oeq", kind, x, zero), lowest, outside)
    finite = b.select(kind, b.compare("olt", kind, x, infinity), value, outside)
    return b.select(kind, b.compare("ogt", kind, x, zero), finite, outside)


def ndtr(b: Builder, lanes: int, x: Value) -> Value:
    """The normal distribution ``(1 + erf(x / sqrt(2))) / 2``: v = exp(-x^2 / 2) (1 - s) P(s) with
    s = |x| / (3 + |x|) below 0, 1 - v above; v is 0 where it would be subnormal.

    x^2 is that of |x| cut to 12 bits, which is exact, and what this lacks, (|x| - h) (|x| + h).
    """
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    size = vectors.absolute(b, lanes, x)
    far = b.compare("ogt", kind, size, splat(kind, f32(_NDTR_END)))
    size = b.select(kind, far, splat(kind, f32(_NDTR_END)), size)
    cut = b.op("and", ints, vectors.bits(b, lanes, size), splat(ints, str(-(1 << 12))))
    high = vectors.from_bits(b, lanes, cut)
    low = b.op("fmul", kind, b.op("fsub", kind, size, high), b.op("fadd", kind, size, high))
    power = times(b, kind, b.op("fmul", kind, high, high), -0.5)
    tail, exponent = _exp_tail(b, lanes, power, times(b, kind, low, -0.5))
    value = b.op("fmul", kind, plus(b, kind, tail, 1.0), _power_of_two(b, lanes, exponent))
    inverse = b.op("fdiv", kind, splat(kind, f32(1.0)), plus(b, kind, size, 3.0))
    share = polynomial(b, kind, b.op("fmul", kind, size, inverse), _NDTR)
    share = b.op("fmul", kind, times(b, kind, inverse, 3.0), share)
    zero = splat(kind, f32(0.0))
    value = b.select(kind, far, zero, b.op("fmul", kind, value, share))
    above = b.op("fsub", kind, splat(kind, f32(1.0)), value)
    return b.select(kind, b.compare("ogt", kind, x, zero), above, value)


def tanh_gate(b: Builder, lanes: int, x: Value) -> Value:
    """``(1 + tanh(t)) / 2`` with Gelu's t, as 1 / (1 + 2^u) with u = -x (A + B x^2).

    A power multiplies the rounding of u, which is up to 128.  So u is the sum of -s (A' + B' s^2),
    exact for s, x rounded to eighths, and of a small number that may be rounded: the negative of
    (x - s) (A + B (s^2 + s x + x^2)) + s (A - A' + (B - B') s^2).
    """
    kind = vector(lanes, FLOAT)
    x = clamp(b, kind, x, *_GATE_ENDS)
    s = plus(b, kind, plus(b, kind, x, _EIGHTHS), -_EIGHTHS)
    square = b.op("fmul", kind, s, s)
    high = b.op("fmul", kind, s, polynomial(b, kind, square, [-first for first in _GATE_HIGH]))
    others = [first - factor for first, factor in zip(_GATE_HIGH, _GATE, strict=True)]
    squares = b.op("fadd", kind, square, b.op("fmul", kind, x, b.op("fadd", kind, x, s)))
    slope = polynomial(b, kind, squares, [-factor for factor in _GATE])
    low = b.op("fmul", kind, b.op("fsub", kind, x, s), slope)
    low = b.op("fadd", kind, low, b.op("fmul", kind, s, polynomial(b, kind, square, others)))
    shifted = plus(b, kind, b.op("fadd", kind, high, low), ROUNDING)
    fraction = b.op("fsub", kind, high, plus(b, kind, shifted, -ROUNDING))
    power = _scaled_power(b, lanes, b.op("fadd", kind, fraction, low), shifted)
    return b.op("fdiv", kind, splat(kind, f32(1.0)), plus(b, kind, power, 1.0))


def tanh(b: Builder, lanes: int, x: Value) -> Value:
    """x + x^3 P(x^2) near zero, else 1 - 2 / (exp(2|x|) + 1) with the sign of x."""
    kind = vector(lanes, FLOAT)
    magnitude = vectors.absolute(b, lanes, x)
    small = _tanh_near(b, kind, magnitude)
    power = exp(b, lanes, b.op("fadd", kind, magnitude, magnitude))
    share = b.op("fdiv", kind, splat(kind, f32(2.0)), plus(b, kind, power, 1.0))
    large = b.op("fsub", kind, splat(kind, f32(1.0)), share)
    near = b.compare("olt", kind, magnitude, splat(kind, f32(0.625)))
    return vectors.copy_sign(b, lanes, b.select(kind, near, small, large), x)


def tanh_by_branches(b: Builder, lanes: int, x: Value) -> Value:
    """``tanh`` of one element: one of its two ways."""
    assert lanes == 1
    kind, magnitude = FLOAT, vectors.absolute(b, lanes, x)
    near = b.compare("olt", kind, magnitude, f32(0.625))
    far = b.op("xor", I1, near, "true")
    (value,) = b.if_so(near, [(kind, magnitude)], lambda: [_tanh_near(b, kind, magnitude)])
    (value,) = b.if_so(far, [(kind, value)], lambda: [_tanh_far(b, magnitude)])
    return vectors.copy_sign(b, lanes, value, x)


def _tanh_near(b: Builder, kind: Type, x: Value) -> Value:
    """x + x^3 P(x^2)"""
    square = b.op("fmul", kind, x, x)
    cube = b.op("fmul", kind, square, x)
    return b.op("fadd", kind, x, b.op("fmul", kind, cube, polynomial(b, kind, square, _TANH)))


def _tanh_far(b: Builder, x: Value) -> Value:
    """1 - 2 / (exp(2 x) + 1) for x from 0.625 on, or NaN; it is 1 where 2 x is ``_NO_SHARE``."""
    kind, doubled = FLOAT, b.op("fadd", FLOAT, x, x)
    high = f32(_NO_SHARE)
    doubled = b.select(kind, b.compare("olt", kind, high, doubled), high, doubled)
    tail, exponent = _exp_tail(b, 1, doubled)
    power = b.op("fmul", kind, plus(b, kind, tail, 1.0), _power_of_two(b, 1, exponent))
    share = b.op("fdiv", kind, f32(2.0), plus(b, kind, power, 1.0))
    return b.op("fsub", kind, f32(1.0), share)


def erf(b: Builder, lanes: int, x: Value) -> Value:
    """x P(x^2) for |x| < 1, else 1 - exp(-Q(|x|)) with the sign of x."""
    kind = vector(lanes, FLOAT)
    magnitude = vectors.absolute(b, lanes, x)
    square = b.op("fmul", kind, magnitude, magnitude)
    small = b.op("fmul", kind, magnitude, polynomial(b, kind, square, _ERF))
    inside = clamp(b, kind, magnitude, 0.0, 4.0)
    decay = b.negate(polynomial(b, kind, inside, _LOG_ERFC))
    large = b.op("fsub", kind, splat(kind, f32(1.0)), exp(b, lanes, decay))
    near = b.compare("olt", kind, magnitude, splat(kind, f32(1.0)))
    return vectors.copy_sign(b, lanes, b.select(kind, near, small, large), x)


def power_constant(b: Builder, target: Target, lanes: int, x: Value, exponent: float) -> Value:
    """``x ** exponent``: products and square roots for the exponents that networks use."""
    kind = vector(lanes, FLOAT)
    if exponent < 0 and -exponent in _SIMPLE_EXPONENTS:
        inverse = power_constant(b, target, lanes, x, -exponent)
        return b.op("fdiv", kind, splat(kind, f32(1.0)), inverse)
    if exponent not in _SIMPLE_EXPONENTS:
        return power(b, target, lanes, x, splat(kind, f32(exponent)))
    if not exponent.is_integer():
        x = _root_base(b, lanes, x)
    value: Value = ABSENT
    for part in _SIMPLE_EXPONENTS[exponent]:
        factor = x
        for _ in range(part):
            factor = sqrt(b, lanes, factor)
        value = b.op("fmul", kind, value, factor) if value else factor
    return value


def _root_base(b: Builder, lanes: int, x: Value) -> Value:
    """x, but |x| of -0 and -inf, whose powers are positive, not those of the square root."""
    kind, bits = vector(lanes, FLOAT), vector(lanes, I1)
    below = b.compare("olt", kind, x, splat(kind, f32(0.0)))
    finite = b.compare("ogt", kind, x, splat(kind, f32(-math.inf)))
    return b.select(kind, b.op("and", bits, below, finite), x, vectors.absolute(b, lanes, x))


def power(b: Builder, target: Target, lanes: int, x: Value, y: Value) -> Value:
    """``x ** y`` = exp(y log|x|) in float64, with the sign and the borders of IEEE pow."""
    kind, wide = vector(lanes, FLOAT), vector(lanes, DOUBLE)
    magnitude = vectors.absolute(b, lanes, x)
    logarithm = _log64(b, lanes, b.cast("fpext", kind, magnitude, wide))
    product = b.op("fmul", wide, b.cast("fpext", kind, y, wide), logarithm)
    # (-1) ** inf is 1: inf log(1) is no NaN here.
    zero = splat(wide, literal(wide, 0.0))
    product = b.select(wide, b.compare("oeq", wide, logarithm, zero), zero, product)
    value = b.cast("fptrunc", wide, _exp64(b, lanes, product), kind)
    value = _signed_power(b, target, lanes, x, y, value)
    one = splat(kind, f32(1.0))
    trivial = b.compare("oeq", kind, y, splat(kind, f32(0.0)))
    value = b.select(kind, trivial, one, value)
    return b.select(kind, b.compare("oeq", kind, x, one), one, value)


def _signed_power(
    b: Builder, target: Target, lanes: int, x: Value, y: Value, value: Value
) -> Value:
    """Negative bases: the sign for odd exponents, NaN for fractional ones."""
    kind = vector(lanes, FLOAT)
    half = times(b, kind, y, 0.5)
    whole = b.compare("oeq", kind, vectors.rint(b, target, lanes, y), y)
    even = b.compare("oeq", kind, vectors.rint(b, target, lanes, half), half)
    negated = vectors.copy_sign(b, lanes, value, x)
    value = b.select(kind, even, value, b.select(kind, whole, negated, value))
    lowest = b.compare("ogt", kind, x, splat(kind, f32(-math.inf)))
    strictly = b.compare("olt", kind, x, splat(kind, f32(0.0)))
    nan = b.select(kind, whole, value, splat(kind, f32(math.nan)))
    fractional = b.select(kind, lowest, nan, value)
    return b.select(kind, strictly, fractional, value)


def _log64(b: Builder, lanes: int, x: Value) -> Value:
    """log of float64 x >= 0 in the range of float32: 2 artanh((m - 1) / (m + 1)) + n ln 2."""
    kind, ints = vector(lanes, DOUBLE), vector(lanes, I64)
    pattern = b.cast("bitcast", kind, x, ints)
    exponent = b.op("sub", ints, pattern, splat(ints, str(_bits64(math.sqrt(0.5)))))
    exponent = b.op("ashr", ints, exponent, splat(ints, "52"))
    mantissa = b.op("sub", ints, pattern, b.op("shl", ints, exponent, splat(ints, "52")))
    m = b.cast("bitcast", ints, mantissa, kind)
    ratio = b.op("fdiv", kind, plus(b, kind, m, -1.0), plus(b, kind, m, 1.0))
    square = b.op("fmul", kind, ratio, ratio)
    series = polynomial(b, kind, square, [2.0 / (2 * i + 1) for i in range(9)])
    narrow = vector(lanes, I32)
    n = b.cast("sitofp", narrow, b.cast("trunc", ints, exponent, narrow), kind)
    value = b.op("fadd", kind, b.op("fmul", kind, ratio, series), times(b, kind, n, math.log(2)))
    return _logarithm_borders(b, kind, x, value)


def _exp64(b: Builder, lanes: int, x: Value) -> Value:
    """exp of float64, for results in the range of float32."""
    kind, ints = vector(lanes, DOUBLE), vector(lanes, I64)
    magic = 1.5 * 2.0**52
    x = clamp(b, kind, x, -105.0, 90.0)
    shifted = plus(b, kind, times(b, kind, x, math.log2(math.e)), magic)
    n = plus(b, kind, shifted, -magic)
    r = b.op("fsub", kind, x, times(b, kind, n, math.log(2)))
    value = polynomial(b, kind, r, [1.0 / math.factorial(i) for i in range(13)])
    exponent = b.cast("bitcast", kind, shifted, ints)
    exponent = b.op("sub", ints, exponent, splat(ints, str(_bits64(magic) - 1023)))
    exponent = b.op("shl", ints, exponent, splat(ints, "52"))
    return b.op("fmul", kind, value, b.cast("bitcast", ints, exponent, kind))


def polynomial(b: Builder, kind: Type, x: Value, coefficients: Sequence[float]) -> Value:
    """``c[0] + x (c[1] + x (…))``"""
    value = splat(kind, literal(kind, coefficients[-1]))
    for coefficient in reversed(coefficients[:-1]):
        value = plus(b, kind, b.op("fmul", kind, value, x), coefficient)
    return value


def _power_of_two(b: Builder, lanes: int, exponent: Value) -> Value:
    kind = vector(lanes, I32)
    biased = vectors.add_constant(b, lanes, exponent, 127)
    return vectors.from_bits(b, lanes, b.op("shl", kind, biased, splat(kind, "23")))


def clamp(b: Builder, kind: Type, x: Value, low: float, high: float) -> Value:
    """x within the limits; NaN stays NaN."""
    for limit, predicate in ((low, "ogt"), (high, "olt")):
        bound = splat(kind, literal(kind, limit))
        x = b.select(kind, b.compare(predicate, kind, bound, x), bound, x)
    return x


def times(b: Builder, kind: Type, x: Value, factor: float) -> Value:
    return b.op("fmul", kind, x, splat(kind, literal(kind, factor)))


def plus(b: Builder, kind: Type, x: Value, term: float) -> Value:
    return b.op("fadd", kind, x, splat(kind, literal(kind, term)))


def literal(kind: Type, value: float) -> Value:
    """A number as LLVM writes it for an element of a type."""
    if kind.element == DOUBLE:
        return ConstantValue.of(f"0x{_bits64(value):016X}", DOUBLE)
    return f32(value)


def _bits64(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
