"""Products and quotients of float32 in 32-bit integers."""

from __future__ import annotations

from quantglow.backends.llvm.isa.cortex_m.float_parts import (
    INFINITY,
    MOST,
    give_specials,
    normal_parts,
    normalized,
    packed,
    product,
    rounded,
    shifted_up,
    specials,
)
from quantglow.backends.llvm.isa.cortex_m.words import TOP, Code, Word

INVERSES = bytes(round(2**15 / (64.5 + i)) - 256 for i in range(64))
"""2^8 / y - 2^8 for y from 1/2 to 1 in 64 steps."""


def multiply() -> str:
    """``__aeabi_fmul``"""
    c = Code("__aeabi_fmul")
    x, y = c.word("%x"), c.word("%y")
    (a, first), (b, second) = normal_parts(c, x, y)
    high, low = product(a, b)
    m, exponent = rounded(c, "m", high, low, first + second - 128)
    c.unless(exponent.is_("ugt", MOST - 1), "rare")
    c.give((m + (exponent << 23)) | ((x ^ y) & TOP))
    c.label("rare")
    c.give(c.call("multiply_rare", x, y))
    return c.text(("x", "y"))


def scale_integer() -> str:
    """The float32 of an integer of 24 bits times a normal positive one; others go to
    ``scaled_far``."""
    c = Code("scaled_near")
    total, scale = c.word("%x"), c.word("%y")
    spread = total.signed_shift(31)
    size = (total ^ spread) - spread
    c.unless((size - 1).is_("ugt", (1 << 24) - 2), "rare")
    second = scale >> 23
    c.unless((second - 1).is_("ugt", MOST - 1), "rare")
    m, first = shifted_up(c, size, second + (150 - 128), (16, 8, 4, 2, 1), 24)
    high, low = product(m, (scale << 8 | TOP) >> 8)
    m, exponent = rounded(c, "m", high, low, first)
    c.unless(exponent.is_("ugt", MOST - 1), "rare")
    c.give((m + (exponent << 23)) | (spread & TOP))
    c.label("rare")
    c.give(c.call("scaled_far", total, scale))
    return c.text(("x", "y"), "linkonce_odr")


def multiply_rare() -> str:
    """Products of numbers that are not normal, and those that are not."""
    c = Code("multiply_rare")
    x, y = c.word("%x"), c.word("%y")
    a, b = specials(c, x, y)
    sign = (x ^ y) & TOP
    c.unless(a.is_("eq", INFINITY), "first")
    c.unless(b.is_("eq", INFINITY), "second")
    c.unless(a.is_("eq", 0), "zero")
    c.unless(b.is_("eq", 0), "zero")
    (a, first), (b, second) = normalized(c, "a", a), normalized(c, "b", b)
    high, low = product(a, b)
    sticky = c.select((low & 255).is_("eq", 0), 0, 1)
    packed(c, high | sticky, first + second - 127, sign)
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
    c = Code("quotient")
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


def divided(c: Code, a: Word, b: Word, exponent: Word) -> tuple[Word, Word, Word]:
    """``quotient`` of two mantissas, its dividend, and the exponent, which is one less if that is
    the first one doubled."""
    below = a.is_("ult", b)
    a = c.select(below, a << 1, a)
    return c.call("quotient", a, b), a, c.select(below, exponent - 1, exponent)


def divide() -> str:
    """``__aeabi_fdiv``; no quotient lies half way between two float32."""
    c = Code("__aeabi_fdiv")
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
    c = Code("divide_rare")
    x, y = c.word("%x"), c.word("%y")
    a, b = specials(c, x, y)
    sign = (x ^ y) & TOP
    c.unless(a.is_("eq", INFINITY), "first")
    c.unless(b.is_("eq", INFINITY), "zero")
    c.unless(b.is_("eq", 0), "second")
    c.unless(a.is_("eq", 0), "zero")
    (m, first), (n, second) = normalized(c, "a", a), normalized(c, "b", b)
    q, whole, exponent = divided(c, m, n, first - second + 127)
    sticky = c.select((q * n).is_("eq", whole << 24), 0, 1)
    packed(c, q << 6 | sticky, exponent, sign)
    c.label("first")
    c.branch(b.is_("eq", INFINITY), "nan", "endless")
    c.label("second")
    c.branch(a.is_("eq", 0), "nan", "endless")
    give_specials(c, sign)
    return c.text(("x", "y"))
