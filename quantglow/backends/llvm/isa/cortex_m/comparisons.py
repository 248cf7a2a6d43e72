"""Comparisons of float32 vectors that are false for NaN on Cortex-M55.

``vcmp`` of a vector with a general register holds for NaN, too, where it asks for less, or less or
equal.  LLVM's generator takes it for ``c > x`` and ``c >= x`` if it sees that c is one number in
all lanes.  Such comparisons become those of ``-x > -c`` here, which it translates as they stand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME, _LITERAL = r"(%[\w.]+)", r"(splat \(float \w+\))"
_OPERAND = r"(%[\w.]+|splat \(float \w+\))"
_COMPARISON = re.compile(rf"  {_NAME} = fcmp o([lg])([te]) (<\d+ x float>) {_OPERAND}, {_OPERAND}")
_CHOICE = re.compile(
    rf"  {_NAME} = select <\d+ x i1> {_NAME}, <\d+ x float> {_NAME}, <\d+ x float> {_LITERAL}"
)
_FIRST = re.compile(rf"  {_NAME} = insertelement <\d+ x float> poison, float \S+, i32 0")
_SPREAD = re.compile(rf"  {_NAME} = shufflevector <\d+ x float> {_NAME}, .*> zeroinitializer")


@dataclass
class Comparisons:
    """Facts about the vectors of a function.

    ``spread``    vectors that are one number in all lanes, and those that have it in the first
    ``choices``   operands of comparisons ``x > c``
    ``numbers``   results of ``x > c ? x : c``, which are no NaN
    """

    spread: set[str] = field(default_factory=set)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)

    def line(self, line: str) -> list[str]:
        """The lines of LLVM IR that a line becomes."""
        if match := _FIRST.fullmatch(line):
            self.spread.add(match[1])
        elif match := _SPREAD.fullmatch(line):
            self.spread |= {match[1]} if match[2] in self.spread else set()
        elif match := _CHOICE.fullmatch(line):
            name, condition, *operands = match.groups()
            self.numbers |= {name} if self.choices.get(condition) == (*operands,) else set()
        elif match := _COMPARISON.fullmatch(line):
            name, side, end, kind, x, y = match.groups()
            self.choices |= {name: (x, y)} if side + end == "gt" else {}
            greater, less = (x, y) if side == "g" else (y, x)
            if self._is_spread(greater) and not self._is_spread(less) and less not in self.numbers:
                lines, operands = [], []
                for operand, label in ((less, "less"), (greater, "greater")):
                    operands.append(f"{name}.{label}")
                    lines.append(f"  {operands[-1]} = fneg {kind} {operand}")
                return [*lines, f"  {name} = fcmp og{end} {kind} {', '.join(operands)}"]
        return [line]

    def _is_spread(self, operand: str) -> bool:
        """Whether an operand is one number in all lanes."""
        return operand.startswith("splat") or operand in self.spread


def with_ordered_comparisons(text: str) -> str:
    """The same LLVM IR, whose comparisons of float32 vectors are false for NaN."""
    comparisons = Comparisons()
    return "\n".join(each for line in text.split("\n") for each in comparisons.line(line))
