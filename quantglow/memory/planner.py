"""Static memory plan: an offset in one arena for every temporary buffer.

The lower bound of any plan is the largest sum of buffers that are alive at one time.  Several
greedy orders are tried (Glow's, and best fit by size); the smallest peak wins.  Each buffer is held
against those that are alive with it; where those are too many pairs, one scan in the order of
execution takes the place of all orders (``linear_scan``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quantglow.concise import Concise
from quantglow.instr.program import Alloc, Buffer, Dealloc, Program
from quantglow.lazy import cached_property
from quantglow.memory.arena_order import ALIGNMENT
from quantglow.memory.linear_scan import scan
from quantglow.symbolic.size import likely

MOST_PAIRS = 4_000_000
"""Maximum number of pairs of buffers alive at one time that are compared: 2,800 buffers that are
all alive together."""


def aligned_nbytes(buffer: Buffer) -> int:
    """Bytes that a buffer takes in the arena, at the shape at hand."""
    return -(-likely(buffer.nbytes) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Interval:
    """A buffer alive from instruction ``begin`` to ``end``, both included."""

    buffer: Buffer
    begin: int
    end: int

    @cached_property
    def nbytes(self) -> int:
        return aligned_nbytes(self.buffer)


@dataclass(frozen=True, repr=False)
class MemoryPlan(Concise):
    """Byte offsets of temporaries in an arena of ``peak_nbytes``.

    lower_bound_nbytes   no plan of this program has a smaller arena
    every_order_nbytes   no order of execution has one; None: not searched for
    """

    offsets: Mapping[Buffer, int]
    peak_nbytes: int
    lower_bound_nbytes: int
    every_order_nbytes: int | None = None

    @property
    def efficiency(self) -> float:
        """Lower bound over peak; 1.0 is optimal."""
        return self.lower_bound_nbytes / self.peak_nbytes if self.peak_nbytes else 1.0

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven that no order of execution has a smaller arena."""
        return self.peak_nbytes == self.every_order_nbytes

    def __str__(self) -> str:
        text = (
            f"arena {self.peak_nbytes} bytes, lower bound {self.lower_bound_nbytes} "
            f"({self.efficiency:.1%})"
        )
        if self.every_order_nbytes is None:
            return text
        if self.is_optimal:
            return f"{text}, optimal: no order of execution needs less"
        return f"{text}, every order of execution needs {self.every_order_nbytes}"


def plan_memory(program: Program) -> MemoryPlan:
    """The best of several first-fit plans, or of a large program the plan of one scan."""
    return plan_of(lifetimes(program))


def plan_of(intervals: Sequence[Interval]) -> MemoryPlan:
    """The plan of buffers with these lives."""
    bound, together = lower_bound(intervals), alive_together(intervals)
    if together is None:
        offsets = scan([(i.begin, i.end, i.nbytes) for i in intervals])
        return named_plan(intervals, offsets, bound)
    best: list[int] = []
    best_peak = -1
    for order in _ORDERS:
        keys = [order(interval) for interval in intervals]
        offsets = first_fit(intervals, sorted(range(len(keys)), key=keys.__getitem__), together)
        peak = peak_of(intervals, offsets)
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        if best_peak == bound:
            break
    return named_plan(intervals, best, bound)


def named_plan(intervals: Sequence[Interval], offsets: Sequence[int], bound: int) -> MemoryPlan:
    """The plan that places intervals at these offsets."""
    named = {i.buffer: at for at, i in zip(offsets, intervals, strict=True)}
    return MemoryPlan(named, peak_of(intervals, offsets), bound)


def peak_of(intervals: Sequence[Interval], offsets: Sequence[int]) -> int:
    """Bytes of the arena in which intervals have these offsets."""
    return max((at + i.nbytes for at, i in zip(offsets, intervals, strict=True)), default=0)


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


def alive_together(intervals: Sequence[Interval]) -> list[list[int]] | None:
    """For each interval the others that are alive with it, None if these are too many pairs."""
    found: list[list[int]] = [[] for _ in intervals]
    live: dict[int, None] = {}
    ends: list[tuple[int, int]] = []
    pairs = 0
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i].begin):
        while ends and ends[0][0] < intervals[index].begin:
            del live[heapq.heappop(ends)[1]]
        if (pairs := pairs + len(live)) > MOST_PAIRS:
            return None
        found[index].extend(live)
        for other in live:
            found[other].append(index)
        live[index] = None
        heapq.heappush(ends, (intervals[index].end, index))
    return found


def first_fit(
    intervals: Sequence[Interval], order: Sequence[int], together: Sequence[Sequence[int]]
) -> list[int]:
    """Place each interval, in an order, in the smallest gap that holds it among those alive with
    it.
    """
    offsets, ends = [-1] * len(intervals), [0] * len(intervals)
    for index in order:
        taken = sorted([(offsets[o], ends[o]) for o in together[index] if offsets[o] >= 0])
        nbytes = intervals[index].nbytes
        offsets[index] = at = _smallest_gap(taken, nbytes)
        ends[index] = at + nbytes
    return offsets


def _smallest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    best, best_room, top = -1, -1, 0
    for low, high in taken:
        room = low - top
        if room >= nbytes and (best < 0 or room < best_room):
            best, best_room = top, room
        top = max(top, high)
    return top if best < 0 else best
