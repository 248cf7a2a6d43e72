"""Orders of execution by priorities, found by a genetic search that the planned arena judges.

REGAL (Paliwal et al. 2020, arXiv:1905.02494) searches schedules of graphs in this way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from quantglow.memory.planner import plan_of
from quantglow.memory.search.genetic import Genetic, Keys, keys_of
from quantglow.memory.search.task_lives import lives
from quantglow.memory.search.tasks import Tasks

RUNS = 120_000
"""Maximum number of tasks in all orders that are tried: about a second."""


def searched_order(
    tasks: Tasks, starts: Sequence[Sequence[int]], goal: int, runs: int = RUNS
) -> tuple[int, ...]:
    """The order with the smallest planned arena that was found, ``starts`` among them.

    ``goal``: bytes below which no arena is; an order of it ends the search.
    """
    best: int | None = None

    def cost(keys: Keys) -> int:
        """Bytes of the arena; of orders whose bound is no better than the best arena, the bound."""
        nonlocal best
        order = order_of(tasks, keys)
        bound = tasks.peak(order)
        if best is not None and bound >= best:
            return bound
        planned = plan_of(lives(tasks, order)).peak_nbytes
        best = planned if best is None else min(best, planned)
        return planned

    evaluations = runs // len(tasks)
    found = Genetic().search(len(tasks), cost, list(map(keys_of, starts)), evaluations, goal)
    return order_of(tasks, found.keys)


def order_of(tasks: Tasks, keys: Keys) -> tuple[int, ...]:
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
