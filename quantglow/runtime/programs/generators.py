"""Code generators of program segments, which quantglow lowers and plans for them.

Lowering and planning are imported where a segment is compiled: a process that runs stored programs
needs neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.external import External
from quantglow.ir.program.layout import Bases, ProgramLayout
from quantglow.ir.program.program import Alloc, Dealloc, Instruction
from quantglow.memory.plans import FAST, PlannedProgram, Schedule
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError
from quantglow.transforms.partition import Executable, single_node


class ProgramGenerator(ABC):
    """A code generator of program segments: instructions on buffers whose places are known.

    A subclass is a ``Backend``.  quantglow cuts the graph by the instructions that it runs, lowers
    each segment to primitives, chooses the order of execution, plans the arena and packs the
    constants; the subclass turns the instructions of a ``PlannedProgram`` into code.
    """

    unsigned_activations: bool = False
    """Whether int8 activations are stored as uint8 (plus 128), for processors that multiply u8 by
    s8."""

    schedule: Schedule = FAST
    """How the order of execution is chosen: ``"fast"``, or ``"memory"`` for the smallest arena."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in reports."""

    @abstractmethod
    def runs(self, instruction: Instruction) -> bool:
        """Whether it has code for a ``Copy``, ``Fill``, ``Compute`` or ``Repeat``: the operator,
        types and strides.  Asked for the body of a ``Repeat``, too; never for ``Alloc`` and
        ``Dealloc``, which need no code."""

    @abstractmethod
    def generate(self, planned: PlannedProgram, num_threads: int) -> Callable[[Bases], object]:
        """A function that runs the program on the memory of a call.

        ``planned.layout`` has the base and the offset of each operand.  Several threads may call
        the function at once, each with an arena of its own.
        """

    def supports(self, node: Node) -> bool:
        """Whether it runs all instructions that the operator becomes by itself."""
        if isinstance(node, External):
            return False
        from quantglow.transforms.lowering import lower
        from quantglow.transforms.program.generate import generate

        lowered = lower(single_node(node), unsigned=self.unsigned_activations)
        return not self._missing(generate(lowered).instructions)

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """Lower and plan a segment, and generate its code.  Raises ``BackendError`` for an
        instruction of fused operators that it does not run."""
        from quantglow.memory.planning import plan_program

        planned = plan_program(
            segment, None, schedule=self.schedule, unsigned=self.unsigned_activations
        )
        if missing := self._missing(planned.program.instructions):
            raise BackendError(
                f"{self.name} does not run {missing[0]}, although it runs each operator that was "
                f"fused to it. Remedy: {type(self).__name__}.runs must accept it, or refuse one "
                "of the operators."
            )
        return GeneratedExecutable(planned.layout, self.generate(planned, num_threads))

    def _missing(self, steps: Sequence[Instruction]) -> list[Instruction]:
        """The instructions that it does not run, also those in loops."""
        needed = [step for step in steps if not isinstance(step, Alloc | Dealloc)]
        inner = (missing for step in needed for missing in self._missing(step.steps))
        return [*(step for step in needed if not self.runs(step)), *inner]


@dataclass(frozen=True, repr=False)
class GeneratedExecutable(Concise):
    """A program segment, and its code."""

    layout: ProgramLayout
    code: Callable[[Bases], object]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds are known to match its inputs."""
        return self.layout.call(self.code, feeds)
