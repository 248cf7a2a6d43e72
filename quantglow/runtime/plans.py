"""Plans of compiled programs: their figures, and the plan itself when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantglow.concise import Concise
from quantglow.instr.program import BufferKind, Program
from quantglow.lazy import cached_property
from quantglow.runtime.batches import Traffic

if TYPE_CHECKING:
    from quantglow.graph.graph import Graph
    from quantglow.memory.planner import MemoryPlan


@dataclass(frozen=True)
class PlanFigures:
    """Bytes of the arena, the lower bound of any plan, and bytes of the constants."""

    peak_nbytes: int
    lower_bound_nbytes: int
    constant_nbytes: int


@dataclass(frozen=True, repr=False)
class PlannedProgram(Concise):
    """A program with its memory plan, and the primitives that it was made from."""

    lowered: Graph
    program: Program
    plan: MemoryPlan

    @property
    def traffic(self) -> Traffic:
        """Bytes that a run moves."""
        weights = self.figures.constant_nbytes
        moved = sum(b.nbytes for b in self.program.buffers) - weights
        return Traffic(weights, moved, self.plan.peak_nbytes)

    @property
    def figures(self) -> PlanFigures:
        """Sizes of its memory."""
        constants = (b.nbytes for b in self.program.buffers if b.kind is BufferKind.CONSTANT)
        return PlanFigures(self.plan.peak_nbytes, self.plan.lower_bound_nbytes, sum(constants))


@dataclass(frozen=True, eq=False)
class Planning:
    """The figures of a program, and its plan, which is made on demand if the program was read."""

    figures: PlanFigures
    make: Callable[[], PlannedProgram]

    @cached_property
    def planned(self) -> PlannedProgram:
        """The planned program."""
        return self.make()
