"""Static memory plans: an offset in one arena for each buffer, at one or all shapes.

The lower bound of any plan is the largest sum of buffers that are alive at one time.  Several
greedy orders are tried (Glow's, and best fit by size); the smallest peak wins.  Each buffer is held
against those that are alive with it.

Where those are too many pairs, one scan in the order of execution (``Gaps``) takes the place of all
orders: a buffer takes the smallest gap that holds it, and gives it back when it dies, in n log n
steps.

An ``OrderedPlan`` serves all shapes.  The plan of the shape at hand says which of two buffers lies
below the other.  At other shapes each buffer begins where the highest of those below it ends: no
two that are alive together overlap, whatever their sizes; only the peak may be larger than that of
a new plan.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import Alloc, Buffer, Dealloc, Program
from quantglow.ir.symbolic.size import Shape, align, likely
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError

MOST_PAIRS = 4_000_000
"""Maximum number of pairs of buffers alive at one time that are compared: 2,800 buffers that are
all alive together."""


def align_nbytes(buffer: Buffer) -> int:
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
        return align_nbytes(self.buffer)


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
    return plan_intervals(lifetimes(program))


def plan_intervals(intervals: Sequence[Interval]) -> MemoryPlan:
    """The plan of buffers with these lives."""
    bound, together = lower_bound(intervals), alive_together(intervals)
    if together is None:
        offsets = _scan([(i.begin, i.end, i.nbytes) for i in intervals])
        return build_plan(intervals, offsets, bound)
    best: list[int] = []
    best_peak = -1
    for order in _ORDERS:
        keys = [order(interval) for interval in intervals]
        offsets = first_fit(intervals, sorted(range(len(keys)), key=keys.__getitem__), together)
        peak = peak_nbytes(intervals, offsets)
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        if best_peak == bound:
            break
    return build_plan(intervals, best, bound)


def build_plan(intervals: Sequence[Interval], offsets: Sequence[int], bound: int) -> MemoryPlan:
    """The plan that places intervals at these offsets."""
    named = {i.buffer: at for at, i in zip(offsets, intervals, strict=True)}
    return MemoryPlan(named, peak_nbytes(intervals, offsets), bound)


def peak_nbytes(intervals: Sequence[Interval], offsets: Sequence[int]) -> int:
    """Bytes of the arena in which intervals have these offsets."""
    return max((at + i.nbytes for at, i in zip(offsets, intervals, strict=True)), default=0)


def lifetimes(program: Program) -> list[Interval]:
    """The life of each temporary, from its alloc to its dealloc."""
    begins: dict[Buffer, int] = {}
    intervals: list[Interval] = []
    for index, step in enumerate(program.instructions):
        if isinstance(step, Alloc):
            begins[step.buffer] = index
        elif isinstance(step, Dealloc):
            intervals.append(Interval(step.buffer, begins[step.buffer], index))
    return intervals


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
    together: list[list[int]] = [[] for _ in intervals]
    live: dict[int, None] = {}
    ends: list[tuple[int, int]] = []
    pairs = 0
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i].begin):
        while ends and ends[0][0] < intervals[index].begin:
            del live[heapq.heappop(ends)[1]]
        if (pairs := pairs + len(live)) > MOST_PAIRS:
            return None
        together[index].extend(live)
        for other in live:
            together[other].append(index)
        live[index] = None
        heapq.heappush(ends, (intervals[index].end, index))
    return together


def first_fit(
    intervals: Sequence[Interval], order: Sequence[int], together: Sequence[Sequence[int]]
) -> list[int]:
    """Place each interval, in an order, in the smallest gap that holds it among those alive with
    it.
    """
    offsets, ends = [-1] * len(intervals), [0] * len(intervals)
    for index in order:
        occupied = sorted([(offsets[o], ends[o]) for o in together[index] if offsets[o] >= 0])
        nbytes = intervals[index].nbytes
        offsets[index] = at = _smallest_gap(occupied, nbytes)
        ends[index] = at + nbytes
    return offsets


def _smallest_gap(occupied: Sequence[tuple[int, int]], nbytes: int) -> int:
    best, best_room, top = -1, -1, 0
    for low, high in occupied:
        room = low - top
        if room >= nbytes and (best < 0 or room < best_room):
            best, best_room = top, room
        top = max(top, high)
    return top if best < 0 else best


@dataclass(frozen=True, repr=False)
class ArenaOrder(Concise):
    """``below``: for each buffer the earlier ones that it lies above, by position."""

    below: tuple[tuple[int, ...], ...]

    def offsets(self, nbytes: Sequence[int]) -> tuple[list[int], int]:
        """The offset of each buffer, and the size of the arena, where they have these sizes."""
        ends: list[int] = []
        offsets: list[int] = []
        for size, below in zip(nbytes, self.below, strict=True):
            at = 0
            for other in below:
                if ends[other] > at:
                    at = ends[other]
            offsets.append(at)
            ends.append(at + size)
        return offsets, max(ends, default=0)


@dataclass
class Gaps:
    """The free ranges of an arena of ``nbytes``."""

    nbytes: int
    sizes: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    """The start of the gap that ends at an offset."""
    by_size: list[tuple[int, int]] = field(default_factory=list)
    """(size, start), sorted."""

    def __post_init__(self) -> None:
        self._add(0, self.nbytes)

    def take(self, nbytes: int) -> int:
        """The start of the smallest gap that holds so many bytes, which are taken from it."""
        size, start = self.by_size[bisect_left(self.by_size, (nbytes, 0))]
        self._remove(start)
        if size > nbytes:
            self._add(start + nbytes, size - nbytes)
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Give a range back; it joins the gaps beside it."""
        if (after := start + nbytes) in self.sizes:
            nbytes += self._remove(after)
        if (before := self.starts.get(start)) is not None:
            start, nbytes = before, nbytes + self._remove(before)
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        self.sizes[start], self.starts[start + nbytes] = nbytes, start
        insort(self.by_size, (nbytes, start))

    def _remove(self, start: int) -> int:
        """Forget a gap; its size."""
        nbytes = self.sizes.pop(start)
        del self.starts[start + nbytes]
        del self.by_size[bisect_left(self.by_size, (nbytes, start))]
        return nbytes


def _scan(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """An offset for each (begin, end, nbytes), both ends included."""
    gaps, offsets = Gaps(sum(nbytes for *_, nbytes in lives)), [0] * len(lives)
    dying: list[tuple[int, int]] = []
    for index in sorted(range(len(lives)), key=lambda i: lives[i][0]):
        begin, end, nbytes = lives[index]
        while dying and dying[0][0] < begin:
            dead = heapq.heappop(dying)[1]
            gaps.give(offsets[dead], lives[dead][2])
        if nbytes:
            offsets[index] = gaps.take(nbytes)
            heapq.heappush(dying, (end, index))
    return offsets


@dataclass(frozen=True, repr=False)
class OrderedPlan(Concise):
    """Temporaries in the order of their offsets.

    nbytes    size of each in bytes, aligned, which may be free
    below     for each the earlier ones that are alive with it, by position, without those that
              lie below another one of them
    """

    buffers: tuple[Buffer, ...]
    nbytes: Shape
    below: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(program: Program, plan: MemoryPlan) -> OrderedPlan:
        """The order of a plan of the program.  Raises ``BackendError`` for too many buffers."""
        intervals = sorted(lifetimes(program), key=lambda i: plan.offsets[i.buffer])
        together = alive_together(intervals)
        if together is None:
            raise BackendError("too many buffers are alive together for a plan of all shapes")
        below = _next_below([[o for o in others if o < i] for i, others in enumerate(together)])
        nbytes = tuple(align(i.buffer.nbytes, ALIGNMENT) for i in intervals)
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
    indices = []
    for others in below:
        covered = {lower for other in others for lower in below[other]}
        indices.append(tuple(other for other in others if other not in covered))
    return tuple(indices)
