"""Functions of 32-bit words, written like formulas, as LLVM IR; parts of float32 in such words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

TOP = 1 << 31
"""The highest bit."""

WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 99}\n!1 = !{!"branch_weights", i32 99, i32 1}\n'
"""The metadata of branches that are rarely and usually taken."""

NAN = 0x7FC00000
INFINITY = 0x7F800000
HIDDEN = 1 << 23
"""The bit of a mantissa that float32 do not store."""
MOST = 254
"""Number of exponents of normal numbers."""


@dataclass(frozen=True)
class Word:
    """An i32 of a function; operators emit one instruction each, ``>>`` shifts in zeros."""

    code: RoutineBuilder
    name: str

    def __add__(self, other: Word | int) -> Word:
        return self.code.op("add", self, other)

    def __sub__(self, other: Word | int) -> Word:
        return self.code.op("sub", self, other)

    def __mul__(self, other: Word | int) -> Word:
        return self.code.op("mul", self, other)

    def __and__(self, other: Word | int) -> Word:
        return self.code.op("and", self, other)

    def __or__(self, other: Word | int) -> Word:
        return self.code.op("or", self, other)

    def __xor__(self, other: Word | int) -> Word:
        return self.code.op("xor", self, other)

    def __lshift__(self, other: Word | int) -> Word:
        return self.code.op("shl", self, other)

    def __rshift__(self, other: Word | int) -> Word:
        return self.code.op("lshr", self, other)

    def signed_shift(self, other: Word | int) -> Word:
        """Shifted right; the sign is shifted in."""
        return self.code.op("ashr", self, other)

    def is_(self, predicate: str, other: Word | int) -> str:
        """The i1 of a comparison by ``icmp``."""
        return self.code.emit(f"icmp {predicate} i32 {self.name}, {word_text(other)}")


@dataclass
class RoutineBuilder:
    """A function ``i32 @name(i32 ...)`` under construction."""

    name: str
    count: int = 0
    lines: list[str] = field(default_factory=lambda: ["entry:"])
    block: str = "entry"
    loops: dict[str, tuple[int, str, tuple[Word, ...]]] = field(default_factory=dict)

    def word(self, value: str | int) -> Word:
        """An argument or a constant."""
        return Word(self, str(value))

    def emit(self, text: str) -> str:
        """The name of the result of an instruction."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def op(self, name: str, x: Word | int, y: Word | int) -> Word:
        """An instruction of two operands."""
        return Word(self, self.emit(f"{name} i32 {word_text(x)}, {word_text(y)}"))

    def float_op(self, name: str, x: Word | int, y: Word | int) -> Word:
        """An instruction of two float32, whose bits are given, as is the result."""
        first, second = (self.emit(f"bitcast i32 {word_text(v)} to float") for v in (x, y))
        result = self.emit(f"{name} float {first}, {second}")
        return Word(self, self.emit(f"bitcast float {result} to i32"))

    def call(self, name: str, *arguments: Word) -> Word:
        """The result of another function."""
        listed = ", ".join(f"i32 {argument.name}" for argument in arguments)
        return Word(self, self.emit(f"call i32 @{name}({listed})"))

    def select(self, condition: str, x: Word | int, y: Word | int) -> Word:
        """x where the condition holds, else y."""
        operands = f"i32 {word_text(x)}, i32 {word_text(y)}"
        return Word(self, self.emit(f"select i1 {condition}, {operands}"))

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        """End a block."""
        self.lines.append(f"  br label %{label}")

    def branch(
        self, condition: str, label: str, otherwise: str, likely: bool | None = None
    ) -> None:
        """End a block: ``label`` follows if the condition holds.  ``likely``: whether it does."""
        weights = "" if likely is None else f", !prof !{int(likely)}"
        self.lines.append(f"  br i1 {condition}, label %{label}, label %{otherwise}{weights}")

    def unless(self, condition: str, rare: str) -> None:
        """Go on in a new block where the condition does not hold, else at ``rare``."""
        self.count += 1
        following = f"on{self.count}"
        self.branch(condition, rare, following, likely=False)
        self.label(following)

    def phi(self, *cases: tuple[str, Word | int]) -> Word:
        """The value of the block that was left."""
        listed = ", ".join(f"[ {word_text(value)}, %{label} ]" for label, value in cases)
        return Word(self, self.emit(f"phi i32 {listed}"))

    def loop(self, label: str, *starts: Word) -> tuple[Word, ...]:
        """Begin a block to which ``repeat`` comes back; its values, which start as given."""
        before = self.block
        self.jump(label)
        self.label(label)
        words = tuple(self.word(f"%{label}.{index}") for index in range(len(starts)))
        self.loops[label] = len(self.lines), before, starts
        self.lines += [""] * len(starts)
        return words

    def repeat(self, label: str, *values: Word) -> None:
        """End a block and go back to the beginning of a loop with other values."""
        line, before, starts = self.loops[label]
        for index, (start, value) in enumerate(zip(starts, values, strict=True)):
            cases = f"[ {start.name}, %{before} ], [ {value.name}, %{self.block} ]"
            self.lines[line + index] = f"  %{label}.{index} = phi i32 {cases}"
        self.jump(label)

    def give(self, result: Word | int) -> None:
        """End a block and the function."""
        self.lines.append(f"  ret i32 {word_text(result)}")

    def text(self, arguments: Sequence[str], linkage: str = "dso_local") -> str:
        """The definition."""
        listed = ", ".join(f"i32 %{name}" for name in arguments)
        body = "\n".join(self.lines)
        return f"define {linkage} i32 @{self.name}({listed}) nounwind {{\n{body}\n}}\n"


def word_text(value: Word | int) -> str:
    """An operand, constants as signed numbers."""
    if isinstance(value, Word):
        return value.name
    return str((value + TOP) % (2 * TOP) - TOP)


def product(a: Word, b: Word) -> tuple[Word, Word]:
    """The product of two mantissas of 24 bits without its last 16 bits, which are 0 where the
    lowest byte of the second word is."""
    a1, b1, a0, b0 = a >> 8, b >> 8, a & 255, b & 255
    low = a0 * b0
    middle = a0 * b1 + a1 * b0 + (low >> 8)
    return a1 * b1 + (middle >> 8), middle | low


def round_word(
    c: RoutineBuilder, name: str, high: Word, low: Word, exponent: Word, step: int = 1
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


def normal_parts(c: RoutineBuilder, *numbers: Word) -> list[tuple[Word, Word]]:
    """Mantissas and biased exponents of normal numbers; others go to ``rare``."""
    exponents = [(x << 1) >> 24 for x in numbers]
    for exponent in exponents:
        c.unless((exponent - 1).is_("ugt", MOST - 1), "rare")
    return [((x << 8 | TOP) >> 8, exponent) for x, exponent in zip(numbers, exponents, strict=True)]


def parts(c: RoutineBuilder, bits: Word) -> tuple[Word, Word]:
    """Mantissa and exponent of a finite number, from its bits without a sign."""
    exponent, fraction = bits >> 23, bits & (HIDDEN - 1)
    is_small = exponent.is_("eq", 0)
    return c.select(is_small, fraction, fraction | HIDDEN), c.select(is_small, 1, exponent)


def normalize(c: RoutineBuilder, name: str, bits: Word) -> tuple[Word, Word]:
    """Mantissa of 24 bits and exponent of a number that is not 0, from its bits without a sign."""
    m, exponent = c.loop(f"{name}.head", *parts(c, bits))
    c.branch(m.is_("ult", HIDDEN), f"{name}.body", f"{name}.done")
    c.label(f"{name}.body")
    c.repeat(f"{name}.head", m << 1, exponent - 1)
    c.label(f"{name}.done")
    return m, exponent


def pack(c: RoutineBuilder, q: Word, exponent: Word, sign: Word) -> None:
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


def specials(c: RoutineBuilder, x: Word, y: Word) -> tuple[Word, Word]:
    """Both without signs; NaN is given if either is one."""
    a, b = x & (TOP - 1), y & (TOP - 1)
    c.unless(a.is_("ugt", INFINITY), "nan")
    c.unless(b.is_("ugt", INFINITY), "nan")
    return a, b


def give_specials(c: RoutineBuilder, sign: Word) -> None:
    """The blocks ``endless``, ``zero`` and ``nan``, which give these numbers."""
    c.label("endless")
    c.give(sign | INFINITY)
    c.label("zero")
    c.give(sign)
    c.label("nan")
    c.give(NAN)


def shift_up(
    c: RoutineBuilder, m: Word, exponent: Word, steps: Sequence[int], width: int
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


def shift(c: RoutineBuilder, name: str, value: Word, by: Word, beside: Word) -> Word:
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


def difference(c: RoutineBuilder, name: str, x: Word, y: Word, by: Word) -> tuple[Word, Word]:
    """The mantissa of ``x - y / 2^by``, more than half of x, and 1 where its unit is half of that
    of x, else 0."""
    finer = c.select((x - (y >> by)).is_("ugt", HIDDEN), c.word(0), 1)
    whole = x << finer
    return whole - shift(c, name, y, by - finer, whole), finer
