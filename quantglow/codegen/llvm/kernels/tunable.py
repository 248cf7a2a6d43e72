"""Operators whose kernels can be tuned: their forms, and the choices that each has.

Choices come from files, too: what is no choice of an instruction is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import Kernel, task_name
from quantglow.codegen.llvm.kernels.conv.forms import ConvForms, DepthwiseForms
from quantglow.codegen.llvm.kernels.matmul.forms import MatMulForms
from quantglow.ir.program.program import Compute, Instruction

FORMS: tuple[KernelForms, ...] = (DepthwiseForms(), ConvForms(), MatMulForms())

NAMES = tuple(name for forms in FORMS for name in forms.names)
"""Names of all forms."""


class KernelForms(Protocol):
    """The forms of an operator's kernels."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the forms, the preferred first."""

    def takes(self, step: Compute, target: Target) -> bool:
        """Whether an instruction is one of this operator."""

    def default(self, step: Compute, target: Target) -> KernelChoice | None:
        """The choice of the cost model, all fields that its form has filled in; None where the
        kernel is none of the forms."""

    def choices(self, step: Compute, target: Target) -> list[KernelChoice]:
        """All choices, filled in alike."""

    def kernel(self, step: Compute, target: Target, choice: KernelChoice) -> Kernel | None:
        """The kernel of a choice; None where the instruction has no such choice."""

    def cycles(self, step: Compute, target: Target, choice: KernelChoice) -> float:
        """Cycles of the cost model; 0 for forms without one, which the rules prefer."""


def kernel_forms(step: Instruction, target: Target) -> KernelForms | None:
    """The forms of an instruction that has results; None on processors where code counts."""
    if not isinstance(step, Compute) or target.saves_code or step.output.type.is_empty:
        return None
    return next((forms for forms in FORMS if forms.takes(step, target)), None)


def find_tuned_kernel(step: Instruction, target: Target) -> Kernel | None:
    """The kernel of a tuned choice; None where there is none."""
    if not target.choices or (forms := kernel_forms(step, target)) is None:
        return None
    choice = target.choices.by_task.get(task_name(step, target))
    assert isinstance(step, Compute)
    return None if choice is None else forms.kernel(step, target, choice)
