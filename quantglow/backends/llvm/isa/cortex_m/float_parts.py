"""Parts of functions of float32 in 32-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.backends.llvm.isa.cortex_m.words import TOP, Code, Word

NAN = 0x7FC00000
INFINITY = 0x7F800000
HIDDEN = 1 << 23
"""The bit of a mantissa that float32 do not store."""
MOST = 254
"""Number of exponents of normal numbers."""


def product(a: Word, b: Word) -> tuple[Word, Word]:
    """The product of two mantissas of 24 bits without its last 16 bits, which are 0 where the
    lowest byte of the second word is."""
    a1, b1, a0, b0 = a >> 8, b >> 8, a & 255, b & 255
    low = a0 * b0
    middle = a0 * b1 + a1 * b0 + (low >> 8)
    return a1 * b1 + (middle >> 8), middle | low


def rounded(
    c: Code, name: str, high: Word, low: Word, exponent: Word, step: int = 1
) -> tuple[Word, Word]:
    """A ``product`` to 24 bits, half to even, and its exponent: that of 31 bits, or one more
    (``step``: how that is counted)."""
    long, short, tie, even, done = (
        f"{name}.{end}" for end in ("long", "short", "tie", "even", "done")
    )
    c.branch(high.is_("slt", 0), long, short)
    c.label(long)
    more = exponent + step
    half = high >> 7
    c.branch((high << 25).is_("eq", 0), tie, done, likely=False)
    c.label(short)
    less = high >> 6
    c.branch((high << 26).is_("eq", 0), tie, done, likely=False)
    c.label(tie)
    at, value = c.phi((long, more), (short, exponent)), c.phi((long, half), (short, less))
    c.branch((low & 255).is_("eq", 0), even, done)
    c.label(even)
    # A half is added below: less by one unless the result is odd.
    lowered = value + ((value >> 1) & 1) - 1
    c.jump(done)
    c.label(done)
    value = c.phi((long, half), (short, less), (tie, value), (even, lowered))
    exponent = c.phi((long, more), (short, exponent), (tie, at), (even, at))
    return (value + 1) >> 1, exponent


def normal_parts(c: Code, *numbers: Word) -> list[tuple[Word, Word]]:
    """Mantissas and biased exponents of normal numbers; others go to ``rare``."""
    exponents = [(x << 1) >> 24 for x in numbers]
    for exponent in exponents:
        c.unless((exponent - 1).is_("ugt", MOST - 1), "rare")
    return [((x << 8 | TOP) >> 8, exponent) for x, exponent in zip(numbers, exponents, strict=True)]


def parts(c: Code, bits: Word) -> tuple[Word, Word]:
    """Mantissa and exponent of a finite number, from its bits without a sign."""
    exponent, fraction = bits >> 23, bits & (HIDDEN - 1)
    is_small = exponent.is_("eq", 0)
    return c.select(is_small, fraction, fraction | HIDDEN), c.select(is_small, 1, exponent)


def normalized(c: Code, name: str, bits: Word) -> tuple[Word, Word]:
    """Mantissa of 24 bits and exponent of a number that is not 0, from its bits without a sign."""
    m, exponent = c.loop(f"{name}.head", *parts(c, bits))
    c.branch(m.is_("ult", HIDDEN), f"{name}.body", f"{name}.done")
    c.label(f"{name}.body")
    c.repeat(f"{name}.head", m << 1, exponent - 1)
    c.label(f"{name}.done")
    return m, exponent


def packed(c: Code, q: Word, exponent: Word, sign: Word) -> None:
    """Give the float32 of a sign, ``q`` of 31 or 32 bits, whose lowest stands for all that follow,
    and the exponent of 31 bits."""
    is_long = q.is_("slt", 0)
    exponent = c.select(is_long, exponent + 1, exponent)
    shift = c.select(is_long, 8, c.word(7))
    c.branch(exponent.is_("sgt", MOST), "infinite", "finite")
    c.label("infinite")
    c.give(sign | INFINITY)
    c.label("finite")
    is_small = exponent.is_("slt", 1)
    shift = c.select(is_small, shift + 1 - exponent, shift)
    # Shifted by more than 31 bits: nothing is left, not even a half.
    far = shift.is_("ugt", 31)
    q = c.select(far, q >> 2 | 1, q)
    shift = c.select(shift.is_("ugt", 33), 31, c.select(far, shift - 2, shift))
    field = c.select(is_small, 0, (exponent - 1) << 23)
    m, lost = q >> shift, q << (c.word(32) - shift)
    up = lost.is_("ugt", c.word(TOP) - (m & 1))
    c.give((m + field + c.select(up, 1, 0)) | sign)


def specials(c: Code, x: Word, y: Word) -> tuple[Word, Word]:
    """Both without signs; NaN is given if either is one."""
    a, b = x & (TOP - 1), y & (TOP - 1)
    c.unless(a.is_("ugt", INFINITY), "nan")
    c.unless(b.is_("ugt", INFINITY), "nan")
    return a, b


def give_specials(c: Code, sign: Word) -> None:
    """The blocks ``endless``, ``zero`` and ``nan``, which give these numbers."""
    c.label("endless")
    c.give(sign | INFINITY)
    c.label("zero")
    c.give(sign)
    c.label("nan")
    c.give(NAN)


def shifted_up(
    c: Code, m: Word, exponent: Word, steps: Sequence[int], width: int
) -> tuple[Word, Word]:
    """A number that is not 0, shifted until its highest bit is the last of ``width``, and the
    exponent, less one for each place."""
    before = c.block
    for step in steps:
        c.branch(m.is_("ult", 1 << (width - step)), f"by{step}", f"past{step}")
        c.label(f"by{step}")
        doubled, less = m << step, exponent - step
        c.jump(f"past{step}")
        c.label(f"past{step}")
        m = c.phi((before, m), (f"by{step}", doubled))
        exponent = c.phi((before, exponent), (f"by{step}", less))
        before = f"past{step}"
    return m, exponent


def mantissa(value: float) -> int:
    """The 24 bits of a float32."""
    return int(np.float32(value).view(np.int32)) & (HIDDEN - 1) | HIDDEN


def moved(c: Code, name: str, value: Word, by: Word, beside: Word) -> Word:
    """``value / 2^by`` rounded to nearest; half to what makes its sum with ``beside`` even."""
    whole, lost = value >> by, value << (c.word(32) - by)
    up = lost >> 31
    before = c.block
    c.branch(lost.is_("eq", TOP), f"{name}.tie", f"{name}.done", likely=False)
    c.label(f"{name}.tie")
    odd = (whole + beside) & 1
    c.jump(f"{name}.done")
    c.label(f"{name}.done")
    return whole + c.phi((before, up), (f"{name}.tie", odd))


def difference(c: Code, name: str, x: Word, y: Word, by: Word) -> tuple[Word, Word]:
    """The mantissa of ``x - y / 2^by``, more than half of x, and 1 where its unit is half of that
    of x, else 0."""
    finer = c.select((x - (y >> by)).is_("ugt", HIDDEN), c.word(0), 1)
    whole = x << finer
    return whole - moved(c, name, y, by - finer, whole), finer
