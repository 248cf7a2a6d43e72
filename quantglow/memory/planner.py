"""Static memory plan: an offset in one arena for every temporary buffer.

The lower bound of any plan is the largest sum of buffers that are alive at one time.  Several
greedy orders are tried (Glow's, and best fit by size); the smallest peak wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quantglow.concise import Concise
from quantglow.instr.program import Alloc, Buffer, Dealloc, Program

ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the widest vector."""


@dataclass(frozen=True)
class Interval:
    """A buffer alive from instruction ``begin`` to ``end``, both included."""

    buffer: Buffer
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return -(-self.buffer.nbytes // ALIGNMENT) * ALIGNMENT

    def meets(self, other: Interval) -> bool:
        return self.begin <= other.end and other.begin <= self.end


@dataclass(frozen=True, repr=False)
class MemoryPlan(Concise):
    """Byte offsets of temporaries in an arena of ``peak_nbytes``."""

    offsets: Mapping[Buffer, int]
    peak_nbytes: int
    lower_bound_nbytes: int

    @property
    def efficiency(self) -> float:
        """Lower bound over peak; 1.0 is optimal."""
        return self.lower_bound_nbytes / self.peak_nbytes if self.peak_nbytes else 1.0

    def __str__(self) -> str:
        return (
            f"arena {self.peak_nbytes} bytes, lower bound {self.lower_bound_nbytes} "
            f"({self.efficiency:.1%})"
        )


def plan_memory(program: Program) -> MemoryPlan:
    """The best of several first-fit plans."""
    intervals = lifetimes(program)
    bound = lower_bound(intervals)
    best: dict[Buffer, int] = {}
    best_peak = -1
    for order in _ORDERS:
        offsets = _first_fit(sorted(intervals, key=order))
        peak = max((offsets[i.buffer] + i.nbytes for i in intervals), default=0)
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        if best_peak == bound:
            break
    return MemoryPlan(best, best_peak, bound)


def lifetimes(program: Program) -> list[Interval]:
    """The life of each temporary, from its alloc to its dealloc."""
    begins: dict[Buffer, int] = {}
    found: list[Interval] = []
    for index, step in enumerate(program.instructions):
        if isinstance(step, Alloc):
            begins[step.buffer] = index
        elif isinstance(step, Dealloc):
            found.append(Interval(step.buffer, begins[step.buffer], index))
    return found


def lower_bound(intervals: Sequence[Interval]) -> int:
    """The largest sum of simultaneously live bytes."""
    changes: dict[int, int] = {}
    for interval in intervals:
        changes[interval.begin] = changes.get(interval.begin, 0) + interval.nbytes
        changes[interval.end + 1] = changes.get(interval.end + 1, 0) - interval.nbytes
    live = peak = 0
    for index in sorted(changes):
        live += changes[index]
        peak = max(peak, live)
    return peak


_ORDERS: tuple[Callable[[Interval], tuple[int, int]], ...] = (
    lambda i: (-i.nbytes, i.begin - i.end),
    lambda i: (i.begin - i.end, -i.nbytes),
    lambda i: (i.begin, -i.nbytes),
    lambda i: (-i.end, -i.nbytes),
)


def _first_fit(intervals: Sequence[Interval]) -> dict[Buffer, int]:
    """Place each interval in the smallest gap that holds it, among those alive with it."""
    offsets: dict[Buffer, int] = {}
    placed: list[Interval] = []
    for interval in intervals:
        taken = sorted(
            (offsets[p.buffer], offsets[p.buffer] + p.nbytes) for p in placed if p.meets(interval)
        )
        offsets[interval.buffer] = _smallest_gap(taken, interval.nbytes)
        placed.append(interval)
    return offsets


def _smallest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    best, best_room, top = -1, -1, 0
    for low, high in taken:
        room = low - top
        if room >= nbytes and (best < 0 or room < best_room):
            best, best_room = top, room
        top = max(top, high)
    return top if best < 0 else best
