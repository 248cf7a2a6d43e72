"""Soft float: exponential, tanh and logistic function of float32 in 32-bit integers.

Arguments that networks have are computed by integers, others by float arithmetic.  The results are
those of the steps of ``kernels.vector.math_functions``, each rounded as there; tanh takes one of
the two ways that it has there.

The exponents of the values of the polynomial for ``exp`` do not depend on x, so none is packed,
compared or normalized between two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.cortex_m.float_arithmetic import quotient, scale_integer
from quantglow.codegen.llvm.isa.cortex_m.float_words import (
    HIDDEN,
    TOP,
    WEIGHTS,
    RoutineBuilder,
    Word,
    difference,
    mantissa,
    product,
    round_word,
    shift,
)
from quantglow.codegen.llvm.isa.cortex_m.integer_rounding import call_by_lanes
from quantglow.codegen.llvm.isa.interface import Steps
from quantglow.codegen.llvm.values import FLOAT, I32, Operand, Value, vector

POWER_LEAST, MOST = 120, 130
"""Biased exponents of the arguments of ``exp`` that are computed here: from 2^-7 to 16."""
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

GATE_LEAST = 2.0**-12
"""Smaller arguments of tanh would be shifted by more than 31 bits."""
NEAR, FAR = 0.625, 8.0
"""Ends of the series of tanh, and of the arguments whose doubles have powers in ``power``."""
GATE_LAST = 0.005603901
"""Magnitude of the last coefficient of tanh."""
TERMS = ((0.020551708, 6), (0.053714104, 5), (0.13331152, 3), (0.33333272, 2))
"""Magnitudes of the coefficients of tanh, whose signs take turns, and exponents of the sums
with all that follows, without their sign.  The third sum may be below 1/8."""
LAST_EXPONENT = 8

BIAS = 127
POWERS = BIAS - 24, BIAS + 22
"""Biased exponents of the powers whose logistic function is computed here."""

CALLED = {"exp": ("exp",), "tanh": ("exp", "tanh"), "logistic": ("exp", "logistic")}
"""Functions that each needs: ``NAME_near``, and ``NAME_far`` for the other arguments."""

LEVELS = (
    {"tanh_near", "logistic_near", "scaled_near"},
    {"tanh_far", "logistic_far", "exp_near", "scaled_far"},
    {"exp_far"},
)
"""Names of functions; those of each level call those of the next ones only."""


def lows() -> list[int]:
    """``355/512 n - n ln 2`` as float32 products have it, in steps of 2^-32; an odd last bit stands
    for all that follow."""
    low = np.float32(LN2_HIGH / 512 - math.log(2))
    exact = [int(float(np.float32(n) * low) * 2**60) for n in range(24)]
    return [(value >> 28) | (value & ((1 << 28) - 1) != 0) for value in exact]


def reduce_argument(c: RoutineBuilder, x: Word) -> tuple[Word, Word, Word, Word]:
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


def power_series(c: RoutineBuilder, r: Word, at: Word, sign: Word) -> Word:
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
        part, by = round_word(c, f"step{index}", high, low, by, step=-1)
        part = shift(c, f"sum{index}", part, by, term)
        value, exponent = term + ((part ^ sign) - sign), end
    return value


def power() -> str:
    """``exp``"""
    c = RoutineBuilder("exp_near")
    x = c.word("%x")
    r, at, sign, n = reduce_argument(c, x)
    value = power_series(c, r, at, sign)
    high, low = product(r, r)
    square, less = round_word(c, "square", high, low, at << 1, step=-1)
    high, low = product(square, value)
    # Its exponent is -less; that of r is -at.
    tail, less = round_word(c, "tail", high, low, less + 1 - sign, step=-1)
    by = less - at
    whole = tail >> by
    c.branch(sign.is_("slt", 0), "minus", "plus")
    c.label("plus")
    total = r + whole
    c.branch(total.is_("ult", HIDDEN << 1), "plus.same", "plus.long")
    c.label("plus.same")
    same = r + shift(c, "plus.part", tail, by, r)
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
    above = shift(c, "one.above", r1, at1, c.word(0)) + HIDDEN
    above_end = c.block
    c.jump("done")
    c.label("minus")
    less_r, finer = difference(c, "minus.part", r, tail, by)
    below = c.word(HIDDEN << 1) - shift(c, "one.below", less_r, at + finer - 1, c.word(0))
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


def bits(value: float) -> int:
    """The pattern of a float32."""
    return int(np.float32(value).view(np.int32))


def tangent() -> str:
    """``tanh``"""
    c = RoutineBuilder("tanh_near")
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


def gate_series(c: RoutineBuilder, size: Word) -> Word:
    """``x - x^3 (c0 - x^2 (c1 - ...))`` of a positive x."""
    at, x = c.word(127) - (size >> 23), (size << 8 | TOP) >> 8
    high, low = product(x, x)
    square, twice = round_word(c, "square", high, low, at << 1, step=-1)
    value, exponent, finer = c.word(mantissa(GATE_LAST)), LAST_EXPONENT, c.word(0)
    for index, (term, end) in enumerate(TERMS):
        high, low = product(value, square)
        by = twice + (exponent - end) + finer
        part, by = round_word(c, f"step{index}", high, low, by, step=-1)
        whole = c.word(mantissa(term))
        if end == 3:
            value, finer = difference(c, f"sum{index}", whole, part, by)
        else:
            value, finer = whole - shift(c, f"sum{index}", part, by, whole), c.word(0)
        exponent = end
    high, low = product(square, x)
    cube, by = round_word(c, "cube", high, low, twice, step=-1)
    high, low = product(cube, value)
    # Shifts to the unit of x, whose exponent is left out.
    part, by = round_word(c, "part", high, low, by + exponent, step=-1)
    value, finer = difference(c, "last", x, part, by)
    return value + ((c.word(126) - at - finer) << 23)


def logistic() -> str:
    """``1 / (1 + exp(x))``"""
    c = RoutineBuilder("logistic_near")
    x = c.word("%x")
    power = c.call("exp_near", x)
    biased = power >> 23
    c.unless((biased - POWERS[0]).is_("ugt", POWERS[1] - POWERS[0]), "rare")
    m = (power << 8 | TOP) >> 8
    c.branch(biased.is_("ult", BIAS), "below", "above")
    c.label("below")
    small = shift(c, "part", m, c.word(BIAS) - biased, c.word(0)) + HIDDEN
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


DEFINITIONS: dict[str, Callable[[], str]] = {"exp": power, "tanh": tangent, "logistic": logistic}


def function(b: Builder, name: str, lanes: int, x: Value, steps: Mapping[str, Steps]) -> Value:
    """A function of float32, lane by lane."""
    if name not in DEFINITIONS:
        return steps[name](b, lanes, x)
    for each in CALLED[name]:
        b.declarations[f"{each}_far"] = _in_floats(f"{each}_far", steps[each])
        b.declarations[f"{each}_near"] = DEFINITIONS[each]()
    if name == "logistic":
        b.declarations["quotient"] = quotient()
    b.declarations["weights of branches"] = WEIGHTS
    floats, ints = vector(lanes, FLOAT), vector(lanes, I32)
    definition = b.declarations[f"{name}_near"]
    result = call_by_lanes(b, f"{name}_near", definition, lanes, b.cast("bitcast", floats, x, ints))
    return b.cast("bitcast", ints, result, floats)


def scale_sums(
    b: Builder,
    lanes: int,
    sums: Value,
    scale: Operand,
    steps: Callable[[Builder, int, Value, Value], Value],
) -> Value:
    """``InstructionSet.scaled``, lane by lane; ``steps``: in floats."""
    far = Builder()
    x, y = Value.of("%x", I32), Value.of("%y", I32)
    result = steps(far, 1, x, far.cast("bitcast", I32, y, FLOAT))
    b.declarations["scaled_far"] = ending(far, "scaled_far", result, "i32 %x, i32 %y")
    b.declarations["weights of branches"] = WEIGHTS
    floats, ints = vector(lanes, FLOAT), vector(lanes, I32)
    bits = b.cast("bitcast", floats, scale, ints)
    return b.cast(
        "bitcast", ints, call_by_lanes(b, "scaled_near", scale_integer(), lanes, sums, bits), floats
    )


def _in_floats(name: str, steps: Steps) -> str:
    """``i32 @name(i32 x)``: the bits of a function of one float32."""
    b = Builder()
    result = steps(b, 1, b.cast("bitcast", I32, Value.of("%x", I32), FLOAT))
    return ending(b, name, result, "i32 %x")


def ending(b: Builder, name: str, result: Value, arguments: str) -> str:
    """The definition of a function that gives the bits of a float32."""
    b.do(f"ret i32 {b.cast('bitcast', FLOAT, result, I32)}")
    body = "\n".join(["entry:", *b.lines])
    return f"define linkonce_odr i32 @{name}({arguments}) nounwind {{\n{body}\n}}\n"
