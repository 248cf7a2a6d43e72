"""Tasks: the convolutions of a program whose form, tile and order can be chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from quantglow.backends.llvm.isa.choices import Choice, Choices
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.identity import task_of
from quantglow.backends.llvm.kernels.conv.conv import default_choice
from quantglow.backends.llvm.kernels.conv.forms import choices_of, kernel_of, modelled_cycles
from quantglow.instr.program import Compute, Instruction, Program
from quantglow.lazy import cached_property


@dataclass(frozen=True, eq=False)
class Task:
    """Equal convolutions of a program: ``uses`` of them.

    ``key``: see ``task_of``.  ``default``: the choice of the cost model.
    """

    key: str
    step: Compute
    target: Target
    default: Choice
    uses: int = 1

    @cached_property
    def choices(self) -> list[Choice]:
        """All choices, the default first, then by modelled cycles; of equal ones those nearest to
        the default first."""
        return sorted(choices_of(self.step, self.target), key=self._rank)

    def _rank(self, choice: Choice) -> tuple[bool, float, int]:
        kernel = kernel_of(self.step, self.target, choice)
        assert kernel is not None
        own = (choice.panels_outer, choice.unroll, choice.prefetch)
        usual = (self.default.panels_outer, self.default.unroll, self.default.prefetch)
        others = sum(a != b for a, b in zip(own, usual, strict=True))
        return choice != self.default, modelled_cycles(kernel), others

    @property
    def shape(self) -> str:
        """The work in one line."""
        (x, w), y = self.step.inputs[:2], self.step.output
        sizes = ["x".join(map(str, view.shape)) for view in (x, w, y)]
        return f"{sizes[0]} * {sizes[1]} = {sizes[2]} {x.type.dtype}"


def tasks_of(program: Program, target: Target) -> list[Task]:
    """The distinct tasks of a program, in the order of execution."""
    target = replace(target, choices=Choices())
    found: dict[str, Task] = {}
    uses: Counter[str] = Counter()
    waiting: list[Instruction] = list(reversed(program.instructions))
    while waiting:
        step = waiting.pop()
        waiting.extend(reversed(step.steps))
        if not isinstance(step, Compute) or (default := default_choice(step, target)) is None:
            continue
        key = task_of(step, target)
        uses[key] += 1
        found.setdefault(key, Task(key, step, target, default))
    return [replace(task, uses=uses[key]) for key, task in found.items()]
