"""Order of execution, shared buffers and memory plan of a graph's program, with or without a
search.

``"fast"`` takes the best of three depth-first orders.  ``"memory"`` searches for the order with the
smallest planned arena: by an exact search (``exact_order``), then by priorities (``priorities``)
where the plan is larger than the bound of all orders.  Its work is bounded by counts, so the result
is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quantglow.concise import Concise
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.instr.generate import Generated
from quantglow.instr.program import Program
from quantglow.memory.passes import optimize_program
from quantglow.memory.planner import MemoryPlan, lifetimes, plan_memory
from quantglow.memory.schedule import schedule
from quantglow.memory.schedules import FAST
from quantglow.memory.search.exact_order import best_order
from quantglow.memory.search.plan_search import searched_plan
from quantglow.memory.search.priorities import searched_order
from quantglow.memory.search.tasks import Tasks, tasks_of

MOST_TASKS = 2000
"""Maximum number of instructions that a search orders: bounds of longer programs take seconds."""

Maker = Callable[[Sequence[Node]], Generated]
"""Function that generates the program of an order."""


@dataclass(frozen=True, repr=False)
class Arranged(Concise):
    """A program with its plan."""

    program: Program
    plan: MemoryPlan


def arranged(graph: Graph, make: Maker, way: str = FAST) -> Arranged:
    """The program of a lowered graph with its plan, by one of ``SCHEDULES``."""
    generated = make(schedule(graph))
    program = optimize_program(generated.program)
    quick = Arranged(program, plan_memory(program))
    if way == FAST:
        return quick
    tasks = tasks_of(graph, generated)
    return quick if len(tasks) > MOST_TASKS else _smallest(tasks, make, quick)


def _smallest(tasks: Tasks, make: Maker, best: Arranged) -> Arranged:
    """The arrangement with the smallest arena that was found; ``best`` is that of the tasks as
    they are."""
    given = tuple(range(len(tasks)))
    found = best_order(tasks, tasks.peak(given))
    orders = [given] if found.order is None else [found.order, given]
    for order in orders:
        best = _better(tasks, order, make, best, found.bound)
    if best.plan.peak_nbytes > found.bound:
        order = searched_order(tasks, orders, found.bound)
        best = _better(tasks, order, make, best, found.bound)
    return replace(best, plan=replace(best.plan, every_order_nbytes=found.bound))


def _better(
    tasks: Tasks, order: Sequence[int], make: Maker, best: Arranged, bound: int
) -> Arranged:
    """The arrangement of an order if its arena is smaller; ``bound`` is that of all orders."""
    if best.plan.peak_nbytes == bound or tasks.peak(order) >= best.plan.peak_nbytes:
        return best
    program = optimize_program(make(tasks.nodes_in(order)).program)
    plan = searched_plan(lifetimes(program), plan_memory(program))
    return Arranged(program, plan) if plan.peak_nbytes < best.plan.peak_nbytes else best
