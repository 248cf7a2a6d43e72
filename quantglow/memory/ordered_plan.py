"""A memory plan for all shapes: buffers that are alive together keep their order in the arena.

The plan of the shape at hand says which of two buffers lies below the other.  At other shapes each
buffer begins where the highest of those below it ends: no two that are alive together overlap,
whatever their sizes; only the peak may be larger than that of a new plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.concise import Concise
from quantglow.errors import BackendError
from quantglow.instr.program import Buffer, Program
from quantglow.lazy import cached_property
from quantglow.memory.arena_order import ALIGNMENT, ArenaOrder
from quantglow.memory.planner import MemoryPlan, alive_together, lifetimes
from quantglow.symbolic.size import aligned


@dataclass(frozen=True, repr=False)
class OrderedPlan(Concise):
    """Temporaries in the order of their offsets.

    nbytes    size of each in bytes, aligned, which may be free
    below     for each the earlier ones that are alive with it, by position, without those that
              lie below another one of them
    """

    buffers: tuple[Buffer, ...]
    nbytes: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(program: Program, plan: MemoryPlan) -> OrderedPlan:
        """The order of a plan of the program.  Raises ``BackendError`` for too many buffers."""
        intervals = sorted(lifetimes(program), key=lambda i: plan.offsets[i.buffer])
        together = alive_together(intervals)
        if together is None:
            raise BackendError("too many buffers are alive together for a plan of all shapes")
        below = _next_below([[o for o in others if o < i] for i, others in enumerate(together)])
        nbytes = tuple(aligned(i.buffer.nbytes, ALIGNMENT) for i in intervals)
        return OrderedPlan(tuple(i.buffer for i in intervals), nbytes, below)

    @cached_property
    def positions(self) -> dict[Buffer, int]:
        """The position of each buffer."""
        return {buffer: position for position, buffer in enumerate(self.buffers)}

    @property
    def arena(self) -> ArenaOrder:
        """The order alone."""
        return ArenaOrder(self.below)

    def offsets(self, nbytes: Sequence[int]) -> tuple[list[int], int]:
        """``ArenaOrder.offsets``"""
        return self.arena.offsets(nbytes)


def _next_below(below: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """For each the ones that are below it and below no other of these."""
    found = []
    for others in below:
        covered = {lower for other in others for lower in below[other]}
        found.append(tuple(other for other in others if other not in covered))
    return tuple(found)
