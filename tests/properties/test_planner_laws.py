"""Laws of the memory planner, on drawn lifetimes and on drawn graphs."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings

from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import Alloc, Buffer, Dealloc, Program
from quantglow.memory import planner
from quantglow.memory.planner import MemoryPlan, lifetimes, plan_memory
from quantglow.memory.schedule import peak_nbytes, schedule
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place
from tests.generators.programs import memory_programs, programs
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import moderate
from tests.support.feeds import feeds_of


def live_sets(program: Program) -> list[set[Buffer]]:
    """The live buffers after each alloc, found by walking the program without the planner."""
    live: set[Buffer] = set()
    collected = []
    for step in program.instructions:
        if isinstance(step, Alloc):
            live.add(step.buffer)
            collected.append(set(live))
        elif isinstance(step, Dealloc):
            live.remove(step.buffer)
    return collected


def assert_disjoint(plan: MemoryPlan, live: set[Buffer]) -> None:
    for a, b in itertools.combinations(live, 2):
        first, second = plan.offsets[a], plan.offsets[b]
        assert first + a.nbytes <= second or second + b.nbytes <= first


BY_SCAN = 0
"""Maximum number of pairs with which all but the smallest programs are planned in one scan."""

both_ways = pytest.mark.parametrize("most_pairs", [planner.MOST_PAIRS, BY_SCAN])


def planned(program: Program, most_pairs: int) -> MemoryPlan:
    """The plan where so many pairs are compared."""
    with mock.patch.object(planner, "MOST_PAIRS", most_pairs):
        return plan_memory(program)


@both_ways
@given(program=memory_programs())
def test_no_two_live_buffers_overlap(program: Program, most_pairs: int) -> None:
    plan = planned(program, most_pairs)
    for live in live_sets(program):
        assert_disjoint(plan, live)


@given(programs())
def test_no_two_live_buffers_of_a_network_overlap(program: Program) -> None:
    plan = plan_memory(program)
    for live in live_sets(program):
        assert_disjoint(plan, live)


@both_ways
@given(program=memory_programs())
def test_every_buffer_is_aligned_and_inside_the_arena(program: Program, most_pairs: int) -> None:
    plan = planned(program, most_pairs)
    for buffer, offset in plan.offsets.items():
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + buffer.nbytes <= plan.peak_nbytes


@both_ways
@given(program=memory_programs())
def test_the_peak_is_never_below_what_is_live(program: Program, most_pairs: int) -> None:
    plan = planned(program, most_pairs)
    largest = max((sum(b.nbytes for b in live) for live in live_sets(program)), default=0)
    assert largest <= plan.lower_bound_nbytes <= plan.peak_nbytes


@both_ways
@given(program=memory_programs())
def test_the_peak_is_at_most_the_sum(program: Program, most_pairs: int) -> None:
    assert planned(program, most_pairs).peak_nbytes <= sum(i.nbytes for i in lifetimes(program))


@given(mixed_graphs())
def test_sharing_never_needs_more_buffers(graph: Graph) -> None:
    program = generate(lower(graph))
    assert len(lifetimes(share_in_place(program))) <= len(lifetimes(program))


@given(mixed_graphs())
def test_a_schedule_runs_operands_first_and_is_no_worse_than_the_order_given(
    graph: Graph,
) -> None:
    order = schedule(graph)
    position = {node: index for index, node in enumerate(order)}
    assert all(position[o] < position[node] for node in order for o in node.operands)
    assert peak_nbytes(graph, order) <= peak_nbytes(graph, graph.nodes)


@pytest.mark.slow
def test_an_overlap_shows_in_the_reference_backend() -> None:
    """This tests the poison itself: a plan that puts everything at 0 gives wrong results
    somewhere.
    """
    wrong = 0

    @settings(moderate, derandomize=True)
    @given(mixed_graphs())
    def search(graph: Graph) -> None:
        nonlocal wrong
        program = generate(lower(graph))
        plan = plan_memory(program)
        bad = MemoryPlan(dict.fromkeys(plan.offsets, 0), plan.peak_nbytes, 0)
        feeds = feeds_of(graph, spread=2.0)
        good, actual = (ReferenceExecutable(program, p).run(feeds) for p in (plan, bad))
        wrong += any(a.tobytes() != b.tobytes() for a, b in zip(good, actual, strict=True))

    with np.errstate(all="ignore"):
        search()
    assert wrong


@pytest.mark.parametrize(("peak", "bound", "expected"), [(0, 0, 1.0), (200, 100, 0.5)])
def test_efficiency_is_bound_over_peak(peak: int, bound: int, expected: float) -> None:
    assert MemoryPlan({}, peak, bound).efficiency == expected
