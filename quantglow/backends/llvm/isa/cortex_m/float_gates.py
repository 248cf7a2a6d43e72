"""The gates of recurrent layers, tanh and the logistic function of float32, in 32-bit integers.

The steps are those of ``kernels/vector/mathfun``, each rounded as there; of tanh they are those of
one of its two ways.
"""

from __future__ import annotations

import numpy as np

from quantglow.backends.llvm.isa.cortex_m.float_parts import (
    HIDDEN,
    difference,
    mantissa,
    moved,
    product,
    rounded,
)
from quantglow.backends.llvm.isa.cortex_m.words import TOP, Code, Word

GATE_LEAST = 2.0**-12
"""Smaller arguments would be shifted by more than 31 bits."""
NEAR, FAR = 0.625, 8.0
"""Ends of the series, and of the arguments whose doubles have powers in ``float_powers``."""
GATE_LAST = 0.005603901
TERMS = ((0.020551708, 6), (0.053714104, 5), (0.13331152, 3), (0.33333272, 2))
"""Magnitudes of coefficients, whose signs take turns, and exponents of the sums with all that
follows, without their sign.  The third sum may be below 1/8."""
LAST_EXPONENT = 8

BIAS = 127
POWERS = BIAS - 24, BIAS + 22
"""Biased exponents of the powers whose logistic function is computed here."""


def bits(value: float) -> int:
    """The pattern of a float32."""
    return int(np.float32(value).view(np.int32))


def tangent() -> str:
    """``tanh``"""
    c = Code("tanh_near")
    x = c.word("%x")
    size, sign = x & (TOP - 1), x & TOP
    c.unless((size - bits(GATE_LEAST)).is_("ugt", bits(FAR) - bits(GATE_LEAST) - 1), "rare")
    c.branch(size.is_("ult", bits(NEAR)), "near", "far")
    c.label("near")
    c.give(gate_series(c, size) | sign)
    c.label("far")
    # 1 - 2 / (exp(2 |x|) + 1)
    power = c.float_op("fadd", c.call("exp_near", size + HIDDEN), bits(1.0))
    share = c.float_op("fdiv", bits(2.0), power)
    c.give(c.float_op("fsub", bits(1.0), share) | sign)
    c.label("rare")
    c.give(c.call("tanh_far", x))
    return c.text(("x",), "linkonce_odr")


def gate_series(c: Code, size: Word) -> Word:
    """``x - x^3 (c0 - x^2 (c1 - ...))`` of a positive x."""
    at, x = c.word(127) - (size >> 23), (size << 8 | TOP) >> 8
    high, low = product(x, x)
    square, twice = rounded(c, "square", high, low, at << 1, step=-1)
    value, exponent, finer = c.word(mantissa(GATE_LAST)), LAST_EXPONENT, c.word(0)
    for index, (term, end) in enumerate(TERMS):
        high, low = product(value, square)
        by = twice + (exponent - end) + finer
        part, by = rounded(c, f"step{index}", high, low, by, step=-1)
        whole = c.word(mantissa(term))
        if end == 3:
            value, finer = difference(c, f"sum{index}", whole, part, by)
        else:
            value, finer = whole - moved(c, f"sum{index}", part, by, whole), c.word(0)
        exponent = end
    high, low = product(square, x)
    cube, by = rounded(c, "cube", high, low, twice, step=-1)
    high, low = product(cube, value)
    # Shifts to the unit of x, whose exponent is left out.
    part, by = rounded(c, "part", high, low, by + exponent, step=-1)
    value, finer = difference(c, "last", x, part, by)
    return value + ((c.word(126) - at - finer) << 23)


def logistic() -> str:
    """``1 / (1 + exp(x))``"""
    c = Code("logistic_near")
    x = c.word("%x")
    power = c.call("exp_near", x)
    biased = power >> 23
    c.unless((biased - POWERS[0]).is_("ugt", POWERS[1] - POWERS[0]), "rare")
    m = (power << 8 | TOP) >> 8
    c.branch(biased.is_("ult", BIAS), "below", "above")
    c.label("below")
    small = moved(c, "part", m, c.word(BIAS) - biased, c.word(0)) + HIDDEN
    small_end = c.block
    c.jump("sum")
    c.label("above")
    total = m + (c.word(HIDDEN) >> (biased - BIAS))
    c.branch(total.is_("ult", HIDDEN << 1), "sum", "long")
    c.label("long")
    halved, more = total >> 1, biased + 1
    nearest = halved + (total & halved & 1)
    c.jump("sum")
    c.label("sum")
    total = c.phi((small_end, small), ("above", total), ("long", nearest))
    at = c.phi((small_end, c.word(BIAS)), ("above", biased), ("long", more))
    # The sum may be 2^24, whose quotient is 2^24, or 2^23: that is 2^25, which carries.
    q = c.call("quotient", c.word(HIDDEN << 1), total)
    c.give(((q + 1) >> 1) + ((c.word(2 * BIAS - 2) - at) << 23))
    c.label("rare")
    c.give(c.call("logistic_far", x))
    return c.text(("x",), "linkonce_odr")
