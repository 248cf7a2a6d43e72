"""The logistic function of float32 in 32-bit integers: ``1 / (1 + exp(x))``, step by step."""

from __future__ import annotations

from quantglow.backends.llvm.isa.cortex_m.float_parts import HIDDEN, moved
from quantglow.backends.llvm.isa.cortex_m.words import TOP, Code

BIAS = 127
LEAST, MOST = BIAS - 24, BIAS + 22
"""Biased exponents of the powers that are computed here."""


def logistic() -> str:
    """``1 / (1 + exp(x))``"""
    c = Code("logistic_near")
    x = c.word("%x")
    power = c.call("exp_near", x)
    biased = power >> 23
    c.unless((biased - LEAST).is_("ugt", MOST - LEAST), "rare")
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
