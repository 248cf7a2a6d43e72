"""Schedules: the order of execution, depth first or searched, with its memory plan.

``"fast"`` takes the best of three depth-first orders, which visit operands in different sequence;
the one with the smallest simulated peak wins.  Glow's child-memory order is one of them.  Sizes of
nodes stand for buffers here: ``tasks`` knows which of these share memory.

``"memory"`` searches for the order with the smallest planned arena: by an exact search
(``exact_order``), then by priorities (``genetic_search``) where the plan is larger than the bound
of all orders.  Its work is bounded by counts, so the result is the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from quantglow.ir.graph.graph import Graph, topological_order
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.program.program import Program
from quantglow.ir.symbolic.size import likely
from quantglow.memory.exact_order import best_order
from quantglow.memory.genetic_search import search_order, search_plan
from quantglow.memory.planner import MemoryPlan, lifetimes, plan_memory
from quantglow.memory.tasks import Tasks, build_tasks
from quantglow.support.classes import Concise
from quantglow.transforms.program.generate import Generated
from quantglow.transforms.program.sharing import optimize_program

Schedule = Literal["fast", "memory"]
FAST: Schedule = "fast"
MEMORY: Schedule = "memory"
SCHEDULES = (FAST, MEMORY)

MOST_TASKS = 2000
"""Maximum number of instructions that a search orders: bounds of longer programs take seconds."""

Maker = Callable[[Sequence[Node]], Generated]
"""Function that generates the program of an order."""


@dataclass(frozen=True, repr=False)
class Arranged(Concise):
    """A program with its plan."""

    program: Program
    plan: MemoryPlan


def arrange_program(graph: Graph, make: Maker, way: str = FAST) -> Arranged:
    """The program of a lowered graph with its plan, by one of ``SCHEDULES``."""
    generated = make(schedule(graph))
    program = optimize_program(generated.program)
    quick = Arranged(program, plan_memory(program))
    if way == FAST:
        return quick
    tasks = build_tasks(graph, generated)
    return quick if len(tasks) > MOST_TASKS else _smallest(tasks, make, quick)


def _smallest(tasks: Tasks, make: Maker, best: Arranged) -> Arranged:
    """The arrangement with the smallest arena that was found; ``best`` is that of the tasks as
    they are."""
    original = tuple(range(len(tasks)))
    smallest = best_order(tasks, tasks.peak(original))
    orders = [original] if smallest.order is None else [smallest.order, original]
    for order in orders:
        best = _better(tasks, order, make, best, smallest.bound)
    if best.plan.peak_nbytes > smallest.bound:
        order = search_order(tasks, orders, smallest.bound)
        best = _better(tasks, order, make, best, smallest.bound)
    return replace(best, plan=replace(best.plan, every_order_nbytes=smallest.bound))


def _better(
    tasks: Tasks, order: Sequence[int], make: Maker, best: Arranged, bound: int
) -> Arranged:
    """The arrangement of an order if its arena is smaller; ``bound`` is that of all orders."""
    if best.plan.peak_nbytes == bound or tasks.peak(order) >= best.plan.peak_nbytes:
        return best
    program = optimize_program(make(tasks.nodes_in(order)).program)
    plan = search_plan(lifetimes(program), plan_memory(program))
    return Arranged(program, plan) if plan.peak_nbytes < best.plan.peak_nbytes else best


def schedule(graph: Graph) -> tuple[Node, ...]:
    """Nodes of the graph in execution order; operands come before users."""
    depth = _subtree_peaks(graph)
    orders: list[Callable[[Sequence[Node]], Sequence[Node]]] = [
        list,
        lambda operands: list(reversed(operands)),
        lambda operands: sorted(operands, key=lambda n: likely(n.type.nbytes) - depth[n]),
    ]
    roots = [*graph.inputs, *(node for _, node in graph.outputs)]
    candidates = [topological_order(roots, order) for order in orders]
    return min(candidates, key=lambda nodes: peak_nbytes(graph, nodes))


def peak_nbytes(graph: Graph, order: Sequence[Node]) -> int:
    """Peak of the live activations, in bytes, if nodes run in ``order``."""
    waiting = Counter(graph.use_counts)
    live = peak = 0
    for node in order:
        live += _weight(node)
        peak = max(peak, live)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand]:
                live -= _weight(operand)
    return peak


def _weight(node: Node) -> int:
    return 0 if isinstance(node, Input | Constant) else likely(node.type.nbytes)


def _subtree_peaks(graph: Graph) -> dict[Node, int]:
    """Peak memory of computing each node, as if the graph were a tree."""
    peaks: dict[Node, int] = {}
    for node in graph.nodes:
        held = need = 0
        for operand in sorted(node.operands, key=lambda n: likely(n.type.nbytes) - peaks[n]):
            need = max(need, held + peaks[operand])
            held += _weight(operand)
        peaks[node] = max(need, held + _weight(node))
    return peaks
