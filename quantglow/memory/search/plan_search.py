"""Plans nearer to their lower bound: a search over the order in which first fit places buffers."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.memory.planner import (
    Interval,
    MemoryPlan,
    alive_together,
    first_fit,
    lower_bound,
    named_plan,
    peak_of,
)
from quantglow.memory.search.genetic import Genetic, Keys, keys_of

PLACEMENTS = 400_000
"""Maximum number of buffers that are placed, in all plans together: about a second."""


def searched_plan(
    intervals: Sequence[Interval], start: MemoryPlan, placements: int = PLACEMENTS
) -> MemoryPlan:
    """The best plan found; ``start`` if none is better."""
    together = alive_together(intervals)
    if together is None or start.peak_nbytes == start.lower_bound_nbytes:
        return start

    def offsets(keys: Keys) -> list[int]:
        return first_fit(intervals, sorted(range(len(keys)), key=keys.__getitem__), together)

    def cost(keys: Keys) -> int:
        return peak_of(intervals, offsets(keys))

    placed = [start.offsets[interval.buffer] for interval in intervals]
    bound = lower_bound(intervals)
    known = keys_of(sorted(range(len(placed)), key=placed.__getitem__))
    plans = placements // len(placed)
    best = Genetic().search(len(placed), cost, [known], plans, bound)
    if best.cost >= start.peak_nbytes:
        return start
    return named_plan(intervals, offsets(best.keys), bound)
