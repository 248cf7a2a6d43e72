"""The reference backend: runs a planned program in one arena, in NumPy.

A wrong view, lifetime or offset shows here, before any machine code is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quantglow.ir.program.layout import ARENA, Bases, Offsets, ProgramLayout
from quantglow.ir.program.program import (
    Alloc,
    Compute,
    Copy,
    Dealloc,
    Fill,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise

POISON = 0xA5
"""The byte a buffer holds when its life begins: reading it unwritten gives visible nonsense."""

Arrays = Callable[[View], Array]
"""The array of a view, in the memory of a call."""


@dataclass(frozen=True, repr=False)
class ReferenceExecutable(Concise):
    """A program and its memory plan, ready to run."""

    program: Program
    plan: Offsets

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds must match its inputs."""
        layout = ProgramLayout(self.program, self.plan)
        return layout.call(lambda bases: execute_program(layout, bases), feeds)


def execute_program(layout: ProgramLayout, bases: Bases) -> None:
    """Run a program on the memory of a call."""
    for written in (bases[ARENA], *bases[ARENA + 1 + len(layout.program.inputs) :]):
        written[:] = POISON

    def array(view: View) -> Array:
        return layout.array(view, bases)

    for step in layout.program.instructions:
        if isinstance(step, Alloc):
            at = layout.plan.offsets[step.buffer]
            bases[ARENA][at : at + int(step.buffer.nbytes)] = POISON
        _execute(step, array)


def _execute(step: Instruction, array: Arrays) -> None:
    """Run one instruction."""
    match step:
        case Copy(src=src, dst=dst):
            array(dst)[...] = array(src)
        case Fill(value=value):
            for box in step.boxes():
                array(box)[...] = value
        case Compute(op=op, inputs=inputs, output=output):
            result = op.evaluate(*(array(view) for view in inputs))
            array(output)[...] = result
        case Repeat():
            _repeat(step, array)
        case Alloc() | Dealloc():
            pass


def _repeat(step: Repeat, array: Arrays) -> None:
    """Run a loop; views of loops inside of it do not move with it."""
    for trip in range(step.trips):
        if step.condition is not None and not array(step.condition).item():
            break
        for inner in step.body:
            moves = not isinstance(inner, Repeat)
            _execute(inner.mapped(lambda v: v.at_trip(trip)) if moves else inner, array)  # noqa: B023
