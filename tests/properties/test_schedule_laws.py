"""Laws of the order of execution: what it may change, and which one is the best."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.program.program import Program
from quantglow.ir.program.verify import verify_program
from quantglow.memory.genetic_search import decode_order, search_order
from quantglow.memory.planner import lifetimes, lower_bound, plan_memory
from quantglow.memory.schedule import Maker, arrange_program, best_order, peak_bound, schedule
from quantglow.memory.tasks import Tasks, build_tasks, lives, members
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import Generated, generate_by_node
from quantglow.transforms.program.sharing import optimize_program
from tests.generators.branches import branching_graphs, task_sets
from tests.generators.loops import loop_graphs
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.properties.test_planner_laws import assert_disjoint, live_sets
from tests.support.effort import moderate
from tests.support.feeds import feeds_of

GRAPHS = st.one_of(branching_graphs(), mixed_graphs(), loop_graphs())
"""Graphs before lowering."""

MOST_ORDERS = 3000
"""Maximum number of orders that a test compares."""


def maker(graph: Graph, slack_nbytes: int = 0) -> tuple[Graph, Maker]:
    """The lowered graph, and what generates its program in an order."""
    lowered = lower(graph)
    return lowered, partial(generate_by_node, lowered, slack_nbytes=slack_nbytes)


def tasks_and_maker(graph: Graph, slack_nbytes: int = 0) -> tuple[Tasks, Maker]:
    """The tasks of a graph in its scheduled order."""
    lowered, make = maker(graph, slack_nbytes)
    return build_tasks(lowered, make(schedule(lowered))), make


def drawn_order(tasks: Tasks, data: st.DataObject) -> tuple[int, ...]:
    """Any valid order."""
    return decode_order(tasks, data.draw(st.permutations(range(len(tasks)))))


def program_in(tasks: Tasks, make: Maker, order: tuple[int, ...]) -> Program:
    built: Generated = make(tasks.nodes_in(order))
    return optimize_program(built.program)


def every_order(tasks: Tasks, done: int = 0) -> Iterator[tuple[int, ...]]:
    """All valid orders."""
    if done == tasks.all:
        yield ()
    for task in members(tasks.all & ~done):
        if not tasks.before[task] & ~done:
            for remaining in every_order(tasks, done | 1 << task):
                yield (task, *remaining)


def least_peak(tasks: Tasks) -> int:
    """The smallest peak of all orders, of graphs that have few."""
    least = None
    for number, order in enumerate(every_order(tasks)):
        assume(number < MOST_ORDERS)
        peak = tasks.peak(order)
        least = peak if least is None else min(least, peak)
    assert least is not None
    return least


@pytest.mark.slow
@given(GRAPHS, st.sampled_from([0, 64]), st.data())
def test_the_peak_of_tasks_is_the_bound_of_the_planned_program(
    graph: Graph, slack_nbytes: int, data: st.DataObject
) -> None:
    tasks, make = tasks_and_maker(graph, slack_nbytes)
    order = drawn_order(tasks, data)
    plan = plan_memory(program_in(tasks, make, order))
    assert tasks.peak(order) == plan.lower_bound_nbytes


@pytest.mark.slow
@given(GRAPHS, st.data())
def test_lives_of_tasks_are_those_of_the_program(graph: Graph, data: st.DataObject) -> None:
    tasks, make = tasks_and_maker(graph)
    order = drawn_order(tasks, data)
    actual = [(i.begin, i.end, i.nbytes) for i in lives(tasks, order)]
    program = program_in(tasks, make, order)
    assert actual == [(i.begin, i.end, i.nbytes) for i in lifetimes(program)]


@given(GRAPHS, st.data())
def test_nodes_in_an_order_of_tasks_are_all_nodes_operands_first(
    graph: Graph, data: st.DataObject
) -> None:
    tasks, _ = tasks_and_maker(graph)
    order = drawn_order(tasks, data)
    nodes = tasks.nodes_in(order)
    positions: dict[Node, int] = {node: at for at, node in enumerate(nodes)}
    assert positions.keys() == set(tasks.graph.nodes)
    assert all(positions[o] < positions[node] for node in nodes for o in node.operands)


@moderate
@given(GRAPHS, st.data())
def test_results_are_equal_bit_for_bit_in_every_order(graph: Graph, data: st.DataObject) -> None:
    tasks, make = tasks_and_maker(graph)
    feeds = feeds_of(graph, spread=2.0)
    orders = [tuple(range(len(tasks))), drawn_order(tasks, data)]
    programs = [program_in(tasks, make, order) for order in orders]
    one, other = (ReferenceExecutable(p, plan_memory(p)).run(feeds) for p in programs)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@given(task_sets())
def test_the_exact_search_finds_the_smallest_peak_of_all_orders(tasks: Tasks) -> None:
    actual, least = best_order(tasks, 0), least_peak(tasks)
    assert actual.order is not None
    assert (actual.bound, tasks.peak(actual.order)) == (least, least)


@given(st.one_of(branching_graphs(most=8), mixed_graphs(most=6)))
def test_the_exact_search_finds_the_smallest_peak_of_graphs(graph: Graph) -> None:
    tasks, _ = tasks_and_maker(graph)
    assert best_order(tasks, 0).bound == least_peak(tasks)


@given(task_sets(), st.integers(0, 200))
def test_a_search_that_ends_early_states_a_bound_of_all_orders(tasks: Tasks, runs: int) -> None:
    known = tasks.peak(range(len(tasks)))
    actual, least = best_order(tasks, known, runs), least_peak(tasks)
    assert peak_bound(tasks) <= actual.bound <= least
    assert actual.order is None or tasks.peak(actual.order) <= known


@given(task_sets(), st.data())
def test_the_peak_of_tasks_is_the_bound_of_their_lives(tasks: Tasks, data: st.DataObject) -> None:
    order = drawn_order(tasks, data)
    assert tasks.peak(order) == lower_bound(lives(tasks, order))


@moderate
@given(branching_graphs())
def test_a_search_for_memory_never_gives_a_larger_arena(graph: Graph) -> None:
    lowered, make = maker(graph)
    fast, memory = (
        arrange_program(lowered, make).plan,
        arrange_program(lowered, make, "memory").plan,
    )
    assert memory.every_order_nbytes is not None
    assert memory.every_order_nbytes <= memory.peak_nbytes <= fast.peak_nbytes


@moderate
@given(GRAPHS)
def test_a_program_that_was_searched_for_is_valid(graph: Graph) -> None:
    lowered, make = maker(graph)
    built = arrange_program(lowered, make, "memory")
    verify_program(built.program)
    for live in live_sets(built.program):
        assert_disjoint(built.plan, live)


@moderate
@given(branching_graphs())
def test_a_search_finds_the_same_each_time(graph: Graph) -> None:
    lowered, make = maker(graph)
    one, other = (arrange_program(lowered, make, "memory") for _ in range(2))
    assert str(one.program) == str(other.program)
    assert list(one.plan.offsets.values()) == list(other.plan.offsets.values())


@moderate
@given(branching_graphs(), st.data())
def test_priorities_are_never_worse_than_where_they_start(
    graph: Graph, data: st.DataObject
) -> None:
    tasks, make = tasks_and_maker(graph)
    starts = [drawn_order(tasks, data) for _ in range(2)]
    actual = search_order(tasks, starts, goal=0, runs=600)
    peaks = [plan_memory(program_in(tasks, make, order)).peak_nbytes for order in (actual, *starts)]
    assert peaks[0] == min(peaks)
