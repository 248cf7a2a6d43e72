"""The exponential function of float32 in 32-bit integers.

The steps are those of ``kernels/vector/mathfun.exp``, each rounded as there.  The exponents of the
polynomial's values do not depend on x, so none is packed, compared or normalized between two steps.
"""

from __future__ import annotations

import math

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

POWER_LEAST, MOST = 120, 130
"""Biased exponents of the arguments computed here: from 2^-7 to 16."""
LN2_HIGH = 355
"""ln 2 in steps of 1/512, rounded up."""
POINT = 25
"""Fraction bits of arguments from 1/4 on: float32 hold no finer ones there."""
LOG2_E = 11819
"""log2(e) in steps of 2^-13."""
DOUBT = 1 << 18
"""Steps of 2^-27 from a tie within which ``LOG2_E`` does not tell the nearest integer."""

COEFFICIENTS = (0.16666515, 0.041668456, 0.00836942)
"""Coefficients of r^3, r^4, r^5; their sums with all that follows have their exponents."""
POWER_LAST, EXPONENTS = 0.0013813142, (3, 5, 7, 10)
"""Coefficient of r^6; the exponents of all four, without their sign."""
FIRST = 0.49999994
"""Coefficient of r^2: its sum is below 1/2 for negative r only."""


def lows() -> list[int]:
    """``355/512 n - n ln 2`` as float32 products have it, in steps of 2^-32; an odd last bit stands
    for all that follow."""
    low = np.float32(LN2_HIGH / 512 - math.log(2))
    exact = [int(float(np.float32(n) * low) * 2**60) for n in range(24)]
    return [(value >> 28) | (value & ((1 << 28) - 1) != 0) for value in exact]


def reduced(c: Code, x: Word) -> tuple[Word, Word, Word, Word]:
    """Mantissa, exponent without its sign, and sign (0 or -1) of r, and n: x = n ln 2 + r.  Other
    arguments go to ``rare``."""
    biased = (x << 1) >> 24
    c.unless((biased - POWER_LEAST).is_("ugt", MOST - POWER_LEAST), "rare")
    m = (x << 8 | TOP) >> 8
    below_one = c.word(127) - biased
    small = c.block
    c.branch(biased.is_("ult", 125), "reduced", "large")
    c.label("large")
    fixed = m << (biased - 125)
    power = (fixed >> 11) * LOG2_E + (1 << 26)
    c.unless(((power + DOUBT) << 5).is_("ult", DOUBT << 6), "rare")
    n = power >> 27
    entry = c.emit(f"getelementptr i32, ptr @exp.lows, i32 {n.name}")
    low = c.word(c.emit(f"load i32, ptr {entry}"))
    value = ((fixed - n * (LN2_HIGH << 16)) << 7) + low
    sign = value.signed_shift(31)
    value = (value ^ sign) - sign
    c.unless(value.is_("ult", 1 << 25), "rare")
    value, at = c.loop("shift", value, c.word(2))
    c.branch((value << 1).is_("slt", 0), "top", "up")
    c.label("up")
    c.repeat("shift", value << 1, at + 1)
    c.label("top")
    r = (value + 63 + ((value >> 7) & 1)) >> 7
    c.unless(r.is_("eq", HIDDEN << 1), "rare")
    large = c.block
    c.jump("reduced")
    c.label("reduced")
    pairs = ((m, r), (below_one, at), (c.word(0), sign), (c.word(0), n))
    r, at, sign, n = (c.phi((small, x), (large, y)) for x, y in pairs)
    # Everything until here is the same for -x.
    negative = x.signed_shift(31)
    return r, at, sign ^ negative, (n ^ negative) - negative


def power_series(c: Code, r: Word, at: Word, sign: Word) -> Word:
    """The mantissa of ``(exp(r) - 1 - r) / r^2``, whose exponent is -1, or -2 for negative r."""
    value, exponent = c.word(mantissa(POWER_LAST)), EXPONENTS[-1]
    terms = [*zip(COEFFICIENTS, EXPONENTS, strict=False)][::-1]
    first = (sign & (HIDDEN - 1)) + (HIDDEN - 1)
    steps = [(c.word(mantissa(term)), c.word(end)) for term, end in terms] + [(first, sign + 1)]
    ends = [end for _, end in terms] + [1]
    for index, ((term, _), end) in enumerate(zip(steps, ends, strict=True)):
        high, low = product(value, r)
        by = at + (exponent - end)
        if index == len(terms):
            by = by + sign
        part, by = rounded(c, f"step{index}", high, low, by, step=-1)
        part = moved(c, f"sum{index}", part, by, term)
        value, exponent = term + ((part ^ sign) - sign), end
    return value


def power() -> str:
    """``exp``"""
    c = Code("exp_near")
    x = c.word("%x")
    r, at, sign, n = reduced(c, x)
    value = power_series(c, r, at, sign)
    high, low = product(r, r)
    square, less = rounded(c, "square", high, low, at << 1, step=-1)
    high, low = product(square, value)
    # Its exponent is -less; that of r is -at.
    tail, less = rounded(c, "tail", high, low, less + 1 - sign, step=-1)
    by = less - at
    whole = tail >> by
    c.branch(sign.is_("slt", 0), "minus", "plus")
    c.label("plus")
    total = r + whole
    c.branch(total.is_("ult", HIDDEN << 1), "plus.same", "plus.long")
    c.label("plus.same")
    same = r + moved(c, "plus.part", tail, by, r)
    same_end = c.block
    c.jump("above")
    c.label("plus.long")
    halved, lost = total >> 1, tail << (c.word(32) - by)
    up = c.select(lost.is_("eq", 0), halved & 1, 1) & total
    longer, nearer = halved + up, at - 1
    c.jump("above")
    c.label("above")
    r1 = c.phi((same_end, same), ("plus.long", longer))
    at1 = c.phi((same_end, at), ("plus.long", nearer))
    above = moved(c, "one.above", r1, at1, c.word(0)) + HIDDEN
    above_end = c.block
    c.jump("done")
    c.label("minus")
    less_r, finer = difference(c, "minus.part", r, tail, by)
    below = c.word(HIDDEN << 1) - moved(c, "one.below", less_r, at + finer - 1, c.word(0))
    below_end = c.block
    c.jump("done")
    c.label("done")
    m = c.phi((above_end, above), (below_end, below))
    c.give(((n + sign + 126) << 23) + m)
    c.label("rare")
    c.give(c.call("exp_far", x))
    values = ", ".join(f"i32 {value}" for value in lows())
    table = f"@exp.lows = linkonce_odr constant [{len(lows())} x i32] [{values}]\n"
    return table + c.text(("x",), "linkonce_odr")
