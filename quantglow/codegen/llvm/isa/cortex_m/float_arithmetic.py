"""Soft float: sums, comparisons, products and quotients of float32 in 32-bit integers.

The functions have the names and results of the compiler's library (``__aeabi_fmul``, …), which
LLVM calls.  Each has a short way for numbers that are normal and whose result is normal; others,
zeros and subnormal ones too, go to functions called ``…_rare``, which save code, not time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from quantglow.codegen.llvm.isa.cortex_m.float_words import (
    INFINITY,
    MOST,
    NAN,
    TOP,
    WEIGHTS,
    RoutineBuilder,
    Word,
    give_specials,
    normal_parts,
    normalize,
    pack,
    parts,
    product,
    round_word,
    shift_up,
    specials,
)

COMPARISONS = {
    "lt": ("slt", 0),
    "le": ("sle", 1),
    "gt": ("sgt", 0),
    "ge": ("sge", 1),
    "eq": ("eq", 1),
}
"""By name: the comparison of integers in the order of floats, and the result for two zeros."""

INVERSES = bytes(round(2**15 / (64.5 + i)) - 256 for i in range(64))
"""2^8 / y - 2^8 for y from 1/2 to 1 in 64 steps."""


Arm = tuple[str, Word, Word]
"""A block that a sum comes from, twice the sum's mantissa, and the exponent below its sign."""


def add() -> str:
    """``__aeabi_fadd``"""
    c = RoutineBuilder("__aeabi_fadd")
    a, b = larger_first(c)
    exponent, second = (a << 1) >> 24, (b << 1) >> 24
    c.unless(exponent.is_("ugt", MOST), "rare")
    c.unless(second.is_("eq", 0), "rare")
    by = exponent - second
    c.unless(by.is_("ugt", 25), "first")
    # Seven bits below the last one of the first operand, 30 in all.
    m, n = ((v << 9) >> 2 | 1 << 30 for v in (a, b))
    moved = n >> by
    field = a >> 23
    c.branch((a ^ b).is_("slt", 0), "differ", "agree")
    sums = add_magnitudes(c, m, moved, exponent, field)
    differences = subtract_magnitudes(c, m, moved, exponent, field)
    c.label("under")
    beneath, place = join(c, differences)
    # The bits shifted out make a half less than one, and leave a whole number as it is.
    c.branch((moved << by).is_("eq", n), "even", "cut")
    c.label("cut")
    cut = beneath - 1
    c.jump("round")
    c.label("tie")
    value, at = join(c, sums)
    c.branch((moved << by).is_("eq", n), "even", "round")
    c.label("even")
    even, even_at = join(c, [("tie", value, at), ("under", beneath, place)])
    lowered = even + ((even >> 1) & 1) - 1
    c.jump("round")
    c.label("round")
    inexact = [("tie", value, at), ("cut", cut, place), ("even", lowered, even_at)]
    q, at = join(c, [*sums, *differences, *inexact])
    c.give(((q + 1) >> 1) + (at << 23))
    c.label("first")
    c.give(a)
    c.label("rare")
    c.give(c.call("add_rare", a, b))
    return c.text(("x", "y"))


def larger_first(c: RoutineBuilder) -> tuple[Word, Word]:
    """The two operands, the one of the larger magnitude first."""
    x, y = c.word("%x"), c.word("%y")
    c.branch((x << 1).is_("ult", y << 1), "exchanged", "sorted")
    c.label("exchanged")
    c.jump("sorted")
    c.label("sorted")
    return c.phi(("entry", x), ("exchanged", y)), c.phi(("entry", y), ("exchanged", x))


def add_magnitudes(
    c: RoutineBuilder, m: Word, moved: Word, exponent: Word, field: Word
) -> list[Arm]:
    """Sums of operands of one sign, in blocks that go on to "round", or to "tie" if the bits below
    a half are 0."""
    c.label("agree")
    total = m + moved
    c.branch(total.is_("slt", 0), "carried", "near")
    c.label("carried")
    c.unless(exponent.is_("eq", MOST), "rare")
    wide, more = total >> 7, field
    c.branch((total << 25).is_("eq", 0), "tie", "round", likely=False)
    carried = c.block
    c.label("near")
    narrow, same = total >> 6, field - 1
    c.branch((total << 26).is_("eq", 0), "tie", "round", likely=False)
    return [(carried, wide, more), ("near", narrow, same)]


def subtract_magnitudes(
    c: RoutineBuilder, m: Word, moved: Word, exponent: Word, field: Word
) -> list[Arm]:
    """The same of two signs; where the bits below a half are 0, they go on to "under"."""
    c.label("differ")
    left = m - moved
    c.branch((left << 1).is_("slt", 0), "whole", "shorter")
    c.label("whole")
    whole, same = left >> 6, field - 1
    c.branch((left << 26).is_("eq", 0), "under", "round", likely=False)
    c.label("shorter")
    c.unless(exponent.is_("ult", 2), "rare")
    c.branch((left << 2).is_("slt", 0), "half", "short")
    c.label("half")
    halved, lower = left >> 5, field - 2
    c.branch((left << 27).is_("eq", 0), "under", "round", likely=False)
    c.label("short")
    # Exact: the operands are at most one exponent apart.
    c.give(c.call("shortened", left, field))
    return [("whole", whole, same), ("half", halved, lower)]


def join(c: RoutineBuilder, arms: Sequence[Arm]) -> tuple[Word, Word]:
    """Mantissa and exponent where blocks meet."""
    mantissas = c.phi(*((block, mantissa) for block, mantissa, _ in arms))
    return mantissas, c.phi(*((block, exponent) for block, _, exponent in arms))


def subtract() -> str:
    """``__aeabi_fsub``"""
    c = RoutineBuilder("__aeabi_fsub")
    c.give(c.call("__aeabi_fadd", c.word("%x"), c.word("%y") ^ TOP))
    return c.text(("x", "y"))


def shorten() -> str:
    """The float32 of a difference of less than 29 bits; the exponent of 30 bits, with the sign
    above it, is more than 1.  0 has no sign."""
    c = RoutineBuilder("shortened")
    left, field = c.word("%left"), c.word("%field")
    c.unless(left.is_("eq", 0), "zero")
    left, field = c.loop("head", left, field)
    c.branch((left << 1).is_("slt", 0), "done", "more")
    c.label("more")
    c.branch((field << 24).is_("eq", 1 << 24), "small", "next")
    c.label("next")
    c.repeat("head", left << 1, field - 1)
    c.label("done")
    c.give((left >> 7) + ((field - 1) << 23))
    c.label("small")
    c.give((left >> 7) | (field >> 8) << 31)
    c.label("zero")
    c.give(0)
    return c.text(("left", "field"))


def add_rare() -> str:
    """The sum of operands of which the first is not the smaller one by magnitude."""
    c = RoutineBuilder("add_rare")
    x, y = c.word("%x"), c.word("%y")
    a, b = specials(c, x, y)
    sign = x & TOP
    differ = (x ^ y).is_("slt", 0)
    c.branch(a.is_("eq", INFINITY), "endless", "finite")
    c.label("endless")
    c.branch(b.is_("eq", INFINITY), "both", "first")
    c.label("both")
    c.branch(differ, "nan", "first")
    c.label("first")
    c.give(x)
    c.label("finite")
    # Here the second number is subnormal or 0, or the sum overflows or is subnormal.
    (m, exponent), (n, second) = parts(c, a), parts(c, b)
    m, n = m << 6, n << 6
    by = exponent - second
    by = c.select(by.is_("ugt", 31), 31, by)
    moved = n >> by
    moved = moved | c.select((moved << by).is_("eq", n), 0, 1)
    total = c.select(differ, m - moved, m + moved)
    c.unless(total.is_("eq", 0), "zero")
    is_long = total.is_("ugt", (1 << 30) - 1)
    total = c.select(is_long, total >> 1 | (total & 1), total)
    total, at = c.loop("head", total, c.select(is_long, exponent + 1, exponent))
    c.branch(total.is_("ugt", (1 << 29) - 1), "done", "more")
    c.label("more")
    c.branch(at.is_("ugt", 1), "next", "done")
    c.label("next")
    c.repeat("head", total << 1, at - 1)
    c.label("done")
    whole = total >> 6
    m = (total + 31 + (whole & 1)) >> 6
    bits = m + ((at - 1) << 23)
    c.give(c.select(bits.is_("ugt", INFINITY), INFINITY, bits) | sign)
    c.label("zero")
    c.give(c.select(differ, 0, sign))
    c.label("nan")
    c.give(NAN)
    return c.text(("x", "y"))


def from_integer() -> str:
    """``__aeabi_i2f``"""
    c = RoutineBuilder("__aeabi_i2f")
    x = c.word("%x")
    c.branch(x.is_("eq", 0), "zero", "some")
    c.label("some")
    spread = x.signed_shift(31)
    m, at = (x ^ spread) - spread, (x >> 31 << 8) + 157
    m, at = shift_up(c, m, at, (16, 8, 4, 2, 1), 32)
    before = c.block
    half = m >> 7
    c.branch((m << 25).is_("eq", 0), "tie", "round", likely=False)
    c.label("tie")
    lowered = half + ((half >> 1) & 1) - 1
    c.jump("round")
    c.label("round")
    half = c.phi((before, half), ("tie", lowered))
    c.give(((half + 1) >> 1) + (at << 23))
    c.label("zero")
    c.give(0)
    return c.text(("x",))


def compare(name: str) -> str:
    """``__aeabi_fcmplt`` …: 0 for NaN."""
    predicate, zeros = COMPARISONS[name]
    c = RoutineBuilder(f"__aeabi_fcmp{name}")
    x, y = c.word("%x"), c.word("%y")
    a, b = x << 1, y << 1
    c.unless(a.is_("ugt", INFINITY << 1), "nan")
    c.unless(b.is_("ugt", INFINITY << 1), "nan")
    c.unless((a | b).is_("eq", 0), "zeros")
    x, y = (v ^ (v.signed_shift(31) >> 1) for v in (x, y))
    c.give(c.word(c.emit(f"zext i1 {x.is_(predicate, y)} to i32")))
    c.label("nan")
    c.give(0)
    c.label("zeros")
    c.give(zeros)
    return c.text(("x", "y"))


def multiply() -> str:
    """``__aeabi_fmul``"""
    c = RoutineBuilder("__aeabi_fmul")
    x, y = c.word("%x"), c.word("%y")
    (a, first), (b, second) = normal_parts(c, x, y)
    high, low = product(a, b)
    m, exponent = round_word(c, "m", high, low, first + second - 128)
    c.unless(exponent.is_("ugt", MOST - 1), "rare")
    c.give((m + (exponent << 23)) | ((x ^ y) & TOP))
    c.label("rare")
    c.give(c.call("multiply_rare", x, y))
    return c.text(("x", "y"))


def scale_integer() -> str:
    """The float32 of an integer of 24 bits times a normal positive one; others go to
    ``scaled_far``."""
    c = RoutineBuilder("scaled_near")
    total, scale = c.word("%x"), c.word("%y")
    spread = total.signed_shift(31)
    size = (total ^ spread) - spread
    c.unless((size - 1).is_("ugt", (1 << 24) - 2), "rare")
    second = scale >> 23
    c.unless((second - 1).is_("ugt", MOST - 1), "rare")
    m, first = shift_up(c, size, second + (150 - 128), (16, 8, 4, 2, 1), 24)
    high, low = product(m, (scale << 8 | TOP) >> 8)
    m, exponent = round_word(c, "m", high, low, first)
    c.unless(exponent.is_("ugt", MOST - 1), "rare")
    c.give((m + (exponent << 23)) | (spread & TOP))
    c.label("rare")
    c.give(c.call("scaled_far", total, scale))
    return c.text(("x", "y"), "linkonce_odr")


def multiply_rare() -> str:
    """Products of numbers that are not normal, and those that are not."""
    c = RoutineBuilder("multiply_rare")
    x, y = c.word("%x"), c.word("%y")
    a, b = specials(c, x, y)
    sign = (x ^ y) & TOP
    c.unless(a.is_("eq", INFINITY), "first")
    c.unless(b.is_("eq", INFINITY), "second")
    c.unless(a.is_("eq", 0), "zero")
    c.unless(b.is_("eq", 0), "zero")
    (a, first), (b, second) = normalize(c, "a", a), normalize(c, "b", b)
    high, low = product(a, b)
    sticky = c.select((low & 255).is_("eq", 0), 0, 1)
    pack(c, high | sticky, first + second - 127, sign)
    for name, other in (("first", y), ("second", x)):
        c.label(name)
        c.branch((other << 1).is_("eq", 0), "nan", "endless")
    give_specials(c, sign)
    return c.text(("x", "y"))


def quotient() -> str:
    """``a * 2^24 / d``, rounded down, for mantissas d of 24 bits and a from d to 2 d.

    Two digits of 12 bits, from an inverse of 15 bits by a table and a step of Newton's; what they
    leave is exact in 32 bits, and corrects the last digit by a few units.
    """
    c = RoutineBuilder("quotient")
    a, d = c.word("%a"), c.word("%d")
    index = (d >> 17) - 64
    entry = c.emit(f"getelementptr i8, ptr @quotient.inverses, i32 {index.name}")
    byte = c.emit(f"load i8, ptr {entry}")
    inverse = c.word(c.emit(f"zext i8 {byte} to i32")) + 256
    top = (d + 128) >> 8
    error = c.word(1 << 24) - inverse * top
    inverse = ((inverse << 8) + (inverse * error).signed_shift(16)) >> 1
    digit = ((a >> 9) * inverse) >> 18
    remainder = (a << 12) - digit * d
    lower = (remainder.signed_shift(11) * inverse).signed_shift(16)
    remainder = (remainder << 12) - lower * d
    q = (digit << 12) + lower
    remainder, q = c.loop("low", remainder, q)
    c.branch(remainder.is_("slt", 0), "raise", "high")
    c.label("raise")
    c.repeat("low", remainder + d, q - 1)
    c.label("high")
    remainder, q = c.loop("much", remainder, q)
    c.branch(remainder.is_("ult", d), "done", "lower")
    c.label("lower")
    c.repeat("much", remainder - d, q + 1)
    c.label("done")
    c.give(q)
    values = "".join(f"\\{value:02X}" for value in INVERSES)
    table = f'@quotient.inverses = linkonce_odr constant [64 x i8] c"{values}"\n'
    return table + c.text(("a", "d"), "linkonce_odr")


def divided(c: RoutineBuilder, a: Word, b: Word, exponent: Word) -> tuple[Word, Word, Word]:
    """``quotient`` of two mantissas, its dividend, and the exponent, which is one less if that is
    the first one doubled."""
    below = a.is_("ult", b)
    a = c.select(below, a << 1, a)
    return c.call("quotient", a, b), a, c.select(below, exponent - 1, exponent)


def divide() -> str:
    """``__aeabi_fdiv``; no quotient lies half way between two float32."""
    c = RoutineBuilder("__aeabi_fdiv")
    x, y = c.word("%x"), c.word("%y")
    (a, first), (b, second) = normal_parts(c, x, y)
    q, _, exponent = divided(c, a, b, first - second + 126)
    c.unless(exponent.is_("ugt", MOST - 1), "rare")
    c.give((((q + 1) >> 1) + (exponent << 23)) | ((x ^ y) & TOP))
    c.label("rare")
    c.give(c.call("divide_rare", x, y))
    return c.text(("x", "y"))


def divide_rare() -> str:
    """Quotients of numbers that are not normal, and those that are not."""
    c = RoutineBuilder("divide_rare")
    x, y = c.word("%x"), c.word("%y")
    a, b = specials(c, x, y)
    sign = (x ^ y) & TOP
    c.unless(a.is_("eq", INFINITY), "first")
    c.unless(b.is_("eq", INFINITY), "zero")
    c.unless(b.is_("eq", 0), "second")
    c.unless(a.is_("eq", 0), "zero")
    (m, first), (n, second) = normalize(c, "a", a), normalize(c, "b", b)
    q, whole, exponent = divided(c, m, n, first - second + 127)
    sticky = c.select((q * n).is_("eq", whole << 24), 0, 1)
    pack(c, q << 6 | sticky, exponent, sign)
    c.label("first")
    c.branch(b.is_("eq", INFINITY), "nan", "endless")
    c.label("second")
    c.branch(a.is_("eq", 0), "nan", "endless")
    give_specials(c, sign)
    return c.text(("x", "y"))


ROUTINES = (
    (
        r"\bf(add|sub)\b",
        {
            "__aeabi_fsub": subtract,
            "__aeabi_fadd": add,
            "add_rare": add_rare,
            "shortened": shorten,
        },
    ),
    (r"\bfmul\b", {"__aeabi_fmul": multiply, "multiply_rare": multiply_rare}),
    (r"\bfdiv\b", {"__aeabi_fdiv": divide, "divide_rare": divide_rare, "quotient": quotient}),
    (r"\bsitofp\b", {"__aeabi_i2f": from_integer}),
    (r"\bfcmp\b", {f"__aeabi_fcmp{name}": partial(compare, name) for name in COMPARISONS}),
)
"""Instructions of LLVM IR, and the functions that LLVM calls for them, with those of their own."""

LEVELS = (
    {"__aeabi_fsub"},
    {name for _, functions in ROUTINES for name in functions if name.startswith("__aeabi_")}
    - {"__aeabi_fsub"},
    {"add_rare", "multiply_rare", "divide_rare", "shortened"},
    {"quotient"},
)
"""Names of functions; those of each level call those of the next ones only."""


def routines(texts: Sequence[str]) -> str:
    """The functions that LLVM calls for some texts."""
    needed = [
        define()
        for pattern, functions in ROUTINES
        if any(re.search(pattern, text) for text in texts)
        for define in functions.values()
    ]
    return "\n".join([*needed, WEIGHTS]) if needed else ""
