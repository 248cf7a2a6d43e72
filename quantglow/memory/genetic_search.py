"""Genetic search (BRKGA) for orders of execution and for plans of small arenas.

Biased random-key genetic algorithm (Gonçalves and Resende 2011, doi:10.1007/s10732-010-9143-1).  A
candidate is a list of keys in [0, 1), whose meaning belongs to the caller.  In each generation the
best candidates stay, a child takes each key from one of these more often than from another one, and
new ones are drawn.  Work is bounded by the number of evaluations, never by time: equal arguments
give equal results on every machine.

``search_order`` takes keys as priorities of tasks and judges an order by its planned arena, as
REGAL (Paliwal et al. 2020, arXiv:1905.02494) searches schedules of graphs.  ``search_plan`` takes
them as the order in which first fit places buffers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from quantglow.memory.planner import (
    Interval,
    MemoryPlan,
    alive_together,
    build_plan,
    first_fit,
    lower_bound,
    peak_nbytes,
    plan_intervals,
)
from quantglow.memory.tasks import Tasks, lives

Keys = Sequence[float]

BIAS = 0.7
"""Probability of a key to come from the better parent."""

RUNS = 120_000
"""Maximum number of tasks in all orders that are tried: about a second."""

PLACEMENTS = 400_000
"""Maximum number of buffers that are placed, in all plans together: about a second."""


@dataclass(frozen=True)
class Best:
    """The best candidate and its cost."""

    cost: int
    keys: Keys


@dataclass(frozen=True)
class Genetic:
    """Sizes of a generation, and the seed of what is drawn."""

    population: int = 24
    elite: int = 5
    mutants: int = 4
    seed: int = 0

    def search(
        self,
        length: int,
        cost: Callable[[Keys], int],
        starts: Sequence[Keys],
        evaluations: int,
        goal: int,
    ) -> Best:
        """The candidate of the smallest cost, of ``starts`` and so many others.

        ``goal``: a cost below which no candidate gets; one of it ends the search.
        """
        drawn = Random(self.seed)
        population = sorted((Best(cost(keys), keys) for keys in starts), key=_cost)
        missing = max(self.population - len(population), 0)
        new = [_draw(drawn, length) for _ in range(missing)]
        while population[0].cost > goal and evaluations > 0:
            for keys in new[:evaluations]:
                population.append(Best(cost(keys), keys))
                if population[-1].cost <= goal:
                    return population[-1]
            evaluations -= len(new)
            population = sorted(population, key=_cost)[: self.population]
            new = self._children(drawn, population, length)
            del population[self.elite :]
        return population[0]

    def _children(self, drawn: Random, population: Sequence[Best], length: int) -> list[Keys]:
        elite, others = population[: self.elite], population[self.elite :] or population
        pairs = [
            (drawn.choice(elite).keys, drawn.choice(others).keys)
            for _ in range(self.population - self.elite - self.mutants)
        ]
        children: list[Keys] = [_child(drawn, better, worse) for better, worse in pairs]
        return children + [_draw(drawn, length) for _ in range(self.mutants)]


def order_keys(order: Sequence[int]) -> Keys:
    """The keys whose sorted order is an order of all numbers below its length."""
    keys = [0.0] * len(order)
    for position, number in enumerate(order):
        keys[number] = (position + 0.5) / len(order)
    return keys


def _cost(candidate: Best) -> int:
    return candidate.cost


def _draw(drawn: Random, length: int) -> Keys:
    return [drawn.random() for _ in range(length)]


def _child(drawn: Random, better: Keys, worse: Keys) -> Keys:
    pairs = zip(better, worse, strict=True)
    return [one if drawn.random() < BIAS else other for one, other in pairs]


def search_order(
    tasks: Tasks, starts: Sequence[Sequence[int]], goal: int, runs: int = RUNS
) -> tuple[int, ...]:
    """The order with the smallest planned arena that was found, ``starts`` among them.

    ``goal``: bytes below which no arena is; an order of it ends the search.
    """
    best: int | None = None

    def cost(keys: Keys) -> int:
        """Bytes of the arena; of orders whose bound is no better than the best arena, the bound."""
        nonlocal best
        order = decode_order(tasks, keys)
        bound = tasks.peak(order)
        if best is not None and bound >= best:
            return bound
        planned = plan_intervals(lives(tasks, order)).peak_nbytes
        best = planned if best is None else min(best, planned)
        return planned

    evaluations = runs // len(tasks)
    fittest = Genetic().search(len(tasks), cost, list(map(order_keys, starts)), evaluations, goal)
    return decode_order(tasks, fittest.keys)


def decode_order(tasks: Tasks, keys: Keys) -> tuple[int, ...]:
    """The order that always runs the task with the smallest key of those that can run."""
    missing = [needed.bit_count() for needed in tasks.before]
    ready = [(keys[task], task) for task, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        task = heapq.heappop(ready)[1]
        order.append(task)
        for other in tasks.after[task]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (keys[other], other))
    return tuple(order)


def search_plan(
    intervals: Sequence[Interval], start: MemoryPlan, placements: int = PLACEMENTS
) -> MemoryPlan:
    """The best plan found; ``start`` if none is better."""
    together = alive_together(intervals)
    if together is None or start.peak_nbytes == start.lower_bound_nbytes:
        return start

    def offsets(keys: Keys) -> list[int]:
        return first_fit(intervals, sorted(range(len(keys)), key=keys.__getitem__), together)

    def cost(keys: Keys) -> int:
        return peak_nbytes(intervals, offsets(keys))

    placed = [start.offsets[interval.buffer] for interval in intervals]
    bound = lower_bound(intervals)
    keys = order_keys(sorted(range(len(placed)), key=placed.__getitem__))
    plans = placements // len(placed)
    best = Genetic().search(len(placed), cost, [keys], plans, bound)
    if best.cost >= start.peak_nbytes:
        return start
    return build_plan(intervals, offsets(best.keys), bound)
