"""Planned programs, the figures of their memory, names of schedules, and pieces of a batch.

The values of a small piece stay in the cache, and threads take pieces instead of parts of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from quantglow.ir.program.layout import ProgramLayout
from quantglow.ir.program.program import BufferKind, Program
from quantglow.ir.symbolic.size import Dim
from quantglow.support.classes import Concise, cached_property

if TYPE_CHECKING:
    from quantglow.ir.graph.graph import Graph
    from quantglow.memory.planner import MemoryPlan


Schedule = Literal["fast", "memory"]
"""Way to choose the order of execution, see ``memory.schedule``."""

FAST: Schedule = "fast"
MEMORY: Schedule = "memory"
SCHEDULES = (FAST, MEMORY)

NEAR_NBYTES = 2**19
"""Size of activations, in bytes, that stay in a core's own cache beside the weights; smaller
ones gain nothing."""
PIECES_PER_THREAD = 2
"""Minimum number of pieces for each thread: more pieces even out disturbances by other programs."""

MOST_PIECES = 1 << 16
"""Maximum number of pieces: a file may give any number of samples."""


class Traffic(NamedTuple):
    """Bytes of all weights, of all other values, and of those alive at one time."""

    weights: int
    moved: Dim
    peak: int


def pieces_for(batch: int, traffic: Traffic, threads: int) -> int:
    """The number of pieces with the least traffic to memory; with threads, enough for all, or one.

    Every piece reads all weights again, and the activations of a larger one evict each other from
    the caches.  So pieces have the number of samples n that minimizes
    ``weights / n + n * activations`` (``benchmarks/notes/2026-11-batches.md``).
    """
    weights, moved, peak = traffic

    def far_nbytes(pieces: int) -> float:
        return weights * pieces / batch + max(peak / pieces, NEAR_NBYTES)

    numbers = divisors(batch)
    best = min(numbers, key=far_nbytes)
    if threads == 1:
        return best
    worthwhile = [n for n in numbers if n == best or (n > best and n * weights <= int(moved))]
    shared = [n for n in worthwhile if shares_evenly(n, threads)]
    enough = [n for n in shared if n >= PIECES_PER_THREAD * threads]
    return (enough[:1] or shared[-1:] or [1])[0]


def shares_evenly(pieces: int, threads: int) -> bool:
    """Whether threads that take whole pieces are busy for at least three quarters of the time, as
    with parts of each layer.
    """
    turns = -(-pieces // threads)
    return 4 * pieces >= 3 * turns * threads


def divisors(number: int) -> Sequence[int]:
    """All divisors up to ``MOST_PIECES``, the smallest first."""
    return [d for d in range(1, min(number, MOST_PIECES) + 1) if number % d == 0]


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

    @cached_property
    def layout(self) -> ProgramLayout:
        """The places of its buffers in the memory of a call."""
        return ProgramLayout(self.program, self.plan)

    @property
    def traffic(self) -> Traffic:
        """Bytes that a run moves."""
        weights = self.figures.constant_nbytes
        moved = sum(b.nbytes for b in self.program.buffers) - weights
        return Traffic(weights, moved, self.plan.peak_nbytes)

    @property
    def figures(self) -> PlanFigures:
        """Sizes of its memory."""
        buffers = self.program.buffers
        constants = (int(b.nbytes) for b in buffers if b.kind is BufferKind.CONSTANT)
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
