"""Lowering, program generation, sharing and planning keep the meaning of a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.program import Program
from quantglow.ir.program.verify import verify_program
from quantglow.memory.planner import plan_memory
from quantglow.memory.schedule import schedule
from quantglow.support.arrays import Array
from quantglow.transforms.lowering import check_lowered, lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of


def program_of(lowered: Graph) -> Program:
    program = generate(lowered, schedule(lowered))
    verify_program(program)
    return program


def run(program: Program, graph: Graph) -> list[Array]:
    return ReferenceExecutable(program, plan_memory(program)).run(feeds_of(graph, spread=2.0))


@pytest.mark.slow_variants(0)
@given(mixed_graphs(), st.booleans())
def test_lowering_keeps_the_meaning(graph: Graph, unsigned: bool) -> None:
    lowered = lower(graph, unsigned=unsigned)
    lowered.verify()
    check_lowered(lowered)
    feeds = feeds_of(graph, spread=2.0)
    assert_equal_values(interpret(lowered, feeds), interpret(graph, feeds))


@given(mixed_graphs())
def test_the_planned_program_gives_the_values_of_its_graph(graph: Graph) -> None:
    lowered = lower(graph)
    results = run(program_of(lowered), graph)
    expected = interpret(lowered, feeds_of(graph, spread=2.0))
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@given(mixed_graphs())
def test_execution_in_place_changes_nothing(graph: Graph) -> None:
    program = program_of(lower(graph))
    shared = share_in_place(program)
    verify_program(shared)
    for a, b in zip(run(shared, graph), run(program, graph), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@given(mixed_graphs())
def test_lowering_a_lowered_graph_changes_nothing(graph: Graph) -> None:
    lowered = lower(graph)
    assert lower(lowered, unsigned=False) is lowered
