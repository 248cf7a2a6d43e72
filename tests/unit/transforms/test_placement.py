"""Placements never cost more than preferences, and between two executors none costs less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Add, Mul, Relu, Tanh
from quantglow.ir.types import f32
from quantglow.runtime.programs.build import Compiler
from quantglow.support.errors import BackendError
from quantglow.transforms.partition import partition
from quantglow.transforms.placement import Costs, place
from tests.generators.float_graphs.elementwise import Form, elementwise_graphs
from tests.support.effort import moderate
from tests.support.feeds import feeds_of
from tests.support.late_models import BUILDERS
from tests.unit.transforms.test_partition import Interpreted

graphs = elementwise_graphs([Form(kind) for kind in (Relu, Add, Tanh, Mul)], most=8, results=3)


@st.composite
def problems(draw: Any, executors: int) -> tuple[Graph, dict[Node, tuple[int, ...]], Costs]:
    """A graph, choices of each node, and costs that are small integers."""
    graph = draw(graphs)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = draw(st.integers(1, 12))
    choices: dict[Node, tuple[int, ...]] = {}
    for node in graph.compute_nodes():
        count = int(rng.integers(1, executors + 1))
        choices[node] = tuple(map(int, np.sort(rng.permutation(executors)[:count])))
    times = {n: rng.integers(0, 12, executors).astype(float) for n in choices}
    values = (*graph.inputs, *choices)
    transfers = {n: rng.integers(0, most, executors).astype(float) for n in values}
    return graph, choices, Costs(lambda n, i: times[n][i], lambda n, i: transfers[n][i])


@given(problems(2))
def test_two_executors_have_the_cheapest_placement(problem: Any) -> None:
    graph, choices, costs = problem
    all_placements = (dict(zip(choices, p, strict=True)) for p in product(*choices.values()))
    least = min(costs.total(graph, placement) for placement in all_placements)
    assert costs.total(graph, place(graph, choices, costs)) == least


@given(problems(4))
def test_no_placement_costs_more_than_the_preferred_executors(problem: Any) -> None:
    graph, choices, costs = problem
    positions = place(graph, choices, costs)
    preferred = {node: executors[0] for node, executors in choices.items()}
    assert costs.total(graph, positions) <= costs.total(graph, preferred)
    assert all(position in choices[node] for node, position in positions.items())


@dataclass(frozen=True)
class Timed(Interpreted):
    """An interpreter that says what it costs."""

    seconds: float = 1e-6
    transfer: tuple[float, float] = (0.0, 0.0)

    def time(self, node: Node) -> float:
        return self.seconds


EVERYTHING = (Relu, Add, Tanh, Mul)


@given(graphs)
def test_backends_without_times_have_what_they_are_first_for(graph: Graph) -> None:
    left, right = Interpreted((Relu, Add), "left"), Interpreted(EVERYTHING, "right")
    timed = Timed(EVERYTHING, "timed", 0.0)
    owners = {n: s.backend.name for s in partition(graph, (left, right, timed)) for n in s.nodes}
    assert owners == {n: "left" if left.supports(n) else "right" for n in graph.compute_nodes()}


def chain() -> Graph:
    x = Input(name="x", tensor=f32(64, 64))
    inner = Tanh(name="b", x=Relu(name="a", x=x))
    return Graph((x,), (("y", Relu(name="c", x=inner)),))


@pytest.mark.parametrize(
    ("transfer", "expected"),
    [((0.0, 0.0), ["fast"]), ((1.0, 0.0), ["slow"]), ((0.0, 1e-3), ["slow"])],
)
def test_a_fast_backend_has_what_its_transfer_is_worth(
    transfer: tuple[float, float], expected: list[str]
) -> None:
    fast = Timed(EVERYTHING, "fast", 1e-6, transfer)
    slow = Timed(EVERYTHING, "slow", 1e-3)
    assert [s.backend.name for s in partition(chain(), (fast, slow))] == expected


def test_a_node_between_two_of_another_backend_goes_along() -> None:
    device = Timed((Relu,), "device", 1e-6, (1e-4, 0.0))
    host = Timed(EVERYTHING, "host", 1e-5)
    assert [s.backend.name for s in partition(chain(), (device, host))] == ["host"]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    backends = Timed(EVERYTHING, "odd", seconds), Timed(EVERYTHING, "host")
    with pytest.raises(BackendError, match=r"odd: the time of .*Remedy"):
        partition(chain(), backends)


@moderate
@given(graphs)
def test_times_change_who_runs_a_node_and_no_result(graph: Graph) -> None:
    feeds = feeds_of(graph)
    backends = [Timed((Relu, Add), "a", 1e-6, (1e-7, 1e-9)), Timed(EVERYTHING, "b", 2e-6)]
    actual = Compiler.of(backends=backends).compile(graph).executable.run(feeds)
    for mine, expected in zip(actual, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["detector", "rows", "crops"])
def test_without_timed_backends_of_others_models_have_their_segments(kind: str) -> None:
    graph = qg.compile(BUILDERS[kind]().model, num_threads=1).graph
    compiler = Compiler.of(num_threads=1)
    backends = compiler.executors(compiler.backend)
    for segment in partition(graph, backends):
        for node in segment.nodes:
            assert segment.backend is next(b for b in backends if b.supports(node))


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, "llvm"), (0.0, "timed")])
def test_quantglows_own_code_competes(seconds: float, expected: str) -> None:
    build = Compiler.of(num_threads=1, backends=[Timed(EVERYTHING, "timed", seconds)]).compile(
        chain()
    )
    assert [segment.backend.name for segment in build.segments] == [expected]
