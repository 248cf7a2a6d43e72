"""Functions of 32-bit integers as LLVM IR text, written like formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TOP = 1 << 31
"""The highest bit."""


@dataclass(frozen=True)
class Word:
    """An i32 of a function; operators emit one instruction each, ``>>`` shifts in zeros."""

    code: Code
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
        return self.code.emit(f"icmp {predicate} i32 {self.name}, {text_of(other)}")


@dataclass
class Code:
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
        return Word(self, self.emit(f"{name} i32 {text_of(x)}, {text_of(y)}"))

    def float_op(self, name: str, x: Word | int, y: Word | int) -> Word:
        """An instruction of two float32, whose bits are given, as is the result."""
        first, second = (self.emit(f"bitcast i32 {text_of(v)} to float") for v in (x, y))
        result = self.emit(f"{name} float {first}, {second}")
        return Word(self, self.emit(f"bitcast float {result} to i32"))

    def call(self, name: str, *arguments: Word) -> Word:
        """The result of another function."""
        listed = ", ".join(f"i32 {argument.name}" for argument in arguments)
        return Word(self, self.emit(f"call i32 @{name}({listed})"))

    def select(self, condition: str, x: Word | int, y: Word | int) -> Word:
        """x where the condition holds, else y."""
        operands = f"i32 {text_of(x)}, i32 {text_of(y)}"
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
        listed = ", ".join(f"[ {text_of(value)}, %{label} ]" for label, value in cases)
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
        self.lines.append(f"  ret i32 {text_of(result)}")

    def text(self, arguments: Sequence[str], linkage: str = "dso_local") -> str:
        """The definition."""
        listed = ", ".join(f"i32 %{name}" for name in arguments)
        body = "\n".join(self.lines)
        return f"define {linkage} i32 @{self.name}({listed}) nounwind {{\n{body}\n}}\n"


WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 99}\n!1 = !{!"branch_weights", i32 99, i32 1}\n'
"""The metadata of branches that are rarely and usually taken."""


def text_of(value: Word | int) -> str:
    """An operand, constants as signed numbers."""
    if isinstance(value, Word):
        return value.name
    return str((value + TOP) % (2 * TOP) - TOP)
