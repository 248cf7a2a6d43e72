"""Tasks: the convolutions and products of a program whose form, tile and order can be chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from quantglow.backends.llvm.isa.choices import Choice, Choices
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.identity import task_of
from quantglow.backends.llvm.kernel import Kernel
from quantglow.backends.llvm.kernels.tunable import Forms, forms_of
from quantglow.instr.program import Compute, Instruction, Program
from quantglow.lazy import cached_property


@dataclass(frozen=True, eq=False)
class Task:
    """Equal instructions of a program: ``uses`` of them.

    ``key``: see ``task_of``.  ``default``: the choice of the cost model.
    """

    key: str
    step: Compute
    target: Target
    forms: Forms
    default: Choice
    uses: int = 1

    @cached_property
    def choices(self) -> list[Choice]:
        """All choices, the default first, then by modelled cycles; of equal ones those nearest to
        the default first."""
        return sorted(self.forms.choices(self.step, self.target), key=self._rank)

    def _rank(self, choice: Choice) -> tuple[bool, float, int]:
        own = (choice.panels_outer, choice.unroll, choice.prefetch)
        usual = (self.default.panels_outer, self.default.unroll, self.default.prefetch)
        others = sum(a != b for a, b in zip(own, usual, strict=True))
        return choice != self.default, self.cycles(choice), others

    def cycles(self, choice: Choice) -> float:
        """Cycles of the cost model."""
        return self.forms.cycles(self.step, self.target, choice)

    def kernel(self, choice: Choice) -> Kernel | None:
        """The kernel of a choice; None where the task has no such choice."""
        return self.forms.kernel(self.step, self.target, choice)

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
        if not isinstance(step, Compute) or (forms := forms_of(step, target)) is None:
            continue
        if (default := forms.default(step, target)) is None:
            continue
        key = task_of(step, target)
        uses[key] += 1
        found.setdefault(key, Task(key, step, target, forms, default))
    return [replace(task, uses=uses[key]) for key, task in found.items()]
