"""Segments hold every node once, run in order, and give what the whole graph gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import OPS, Input, Node
from quantglow.ir.ops import Add, Mul, Relu, Tanh
from quantglow.ir.types import f32
from quantglow.runtime.programs.build import Compiler
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError
from quantglow.transforms.partition import Segment, partition
from tests.generators.float_graphs.elementwise import SHAPE, Form, elementwise_graphs
from tests.support.effort import moderate
from tests.support.feeds import feeds_of
from tests.support.small_network import small_model, small_samples


@dataclass(frozen=True)
class Interpreted:
    """A backend that interprets its segments."""

    kinds: tuple[type[Node], ...]
    name: str = "interpreted"

    def supports(self, node: Node) -> bool:
        return isinstance(node, self.kinds)

    def compile(self, segment: Graph, target: str, num_threads: int) -> InterpretedExecutable:
        return InterpretedExecutable(segment)


@dataclass(frozen=True)
class InterpretedExecutable:
    segment: Graph

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        return interpret(self.segment, feeds)


LEFT, RIGHT = Interpreted((Relu, Add), "left"), Interpreted((Tanh, Mul), "right")


graphs = elementwise_graphs([Form(kind) for kind in (Relu, Add, Tanh, Mul)], most=14, results=3)
"""Graphs of two kinds of nodes, with shared operands and several outputs."""


@given(graphs)
def test_every_node_is_in_one_segment(graph: Graph) -> None:
    nodes = [node for s in partition(graph, (LEFT, RIGHT)) for node in s.nodes]
    assert len(nodes) == len(set(nodes)) and set(nodes) == set(graph.compute_nodes())


@pytest.mark.slow
@given(graphs)
def test_segments_read_inputs_and_earlier_segments_only(graph: Graph) -> None:
    known = {node.name for node in graph.inputs}
    for segment in partition(graph, (LEFT, RIGHT)):
        assert {node.name for node in segment.graph.inputs} <= known
        known |= {name for name, _ in segment.graph.outputs}


@given(graphs)
def test_segments_give_only_what_is_read(graph: Graph) -> None:
    segments = partition(graph, (LEFT, RIGHT))
    read = {i.name for s in segments for i in s.graph.inputs} | {n.name for _, n in graph.outputs}
    assert all(name in read for s in segments for name, _ in s.graph.outputs)


@pytest.mark.slow
@given(graphs)
def test_a_path_changes_its_backend_no_more_often_than_its_nodes_do(graph: Graph) -> None:
    segments = partition(graph, (LEFT, RIGHT))
    assert len(segments) <= 2 * (1 + most_changes(graph))


def most_changes(graph: Graph) -> int:
    """The most changes of backend on a path."""
    changes: dict[Node, int] = {}
    for node in graph.compute_nodes():
        ours = LEFT.supports(node)
        steps = [changes[o] + (LEFT.supports(o) != ours) for o in node.operands if o in changes]
        changes[node] = max(steps, default=0)
    return max(changes.values(), default=0)


@pytest.mark.slow
@moderate
@given(graphs)
def test_segments_together_give_what_the_graph_gives(graph: Graph) -> None:
    feeds = feeds_of(graph)
    actual = Compiler.of(backends=[LEFT, RIGHT]).compile(graph).executable.run(feeds)
    for mine, expected in zip(actual, interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(mine, expected)


@moderate
@given(graphs)
def test_quantglow_computes_what_no_backend_takes(graph: Graph) -> None:
    feeds = feeds_of(graph)
    build = Compiler.of(num_threads=1, backends=[LEFT]).compile(graph)
    results = build.executable.run(feeds)
    for mine, expected in zip(results, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def names(segments: tuple[Segment, ...]) -> list[list[str]]:
    return [[node.name for node in segment.nodes] for segment in segments]


def x() -> Input:
    return Input(name="x", tensor=f32(*SHAPE))


def test_parallel_branches_of_one_backend_are_one_segment() -> None:
    source = x()
    one, two = Relu(name="a", x=source), Relu(name="b", x=source)
    last = Mul(name="c", x=Tanh(name="d", x=one), y=two)
    graph = Graph((source,), (("y", last),))
    assert names(partition(graph, (LEFT, RIGHT))) == [["a", "b"], ["d", "c"]]


def test_a_node_only_read_later_moves_to_its_reader() -> None:
    source = x()
    early = Relu(name="early", x=source)
    detour = Tanh(name="detour", x=Relu(name="first", x=source))
    graph = Graph((source,), (("y", Add(name="last", x=early, y=detour)),))
    assert names(partition(graph, (LEFT, RIGHT))) == [["first"], ["detour"], ["early", "last"]]


def test_preferences_are_asked_in_order() -> None:
    source = x()
    graph = Graph((source,), (("y", Relu(name="a", x=source)),))
    everything = Interpreted((Node,), "everything")
    chosen = [s.backend.name for s in partition(graph, (RIGHT, LEFT, everything))]
    assert chosen == ["left"]


def test_a_node_nobody_supports_is_named() -> None:
    source = x()
    graph = Graph((source,), (("y", Relu(name="lonely", x=source)),))
    with pytest.raises(BackendError, match=r"Relu lonely.*right"):
        partition(graph, (RIGHT,))


def test_a_backend_that_gives_another_type_is_named() -> None:
    class Wrong(InterpretedExecutable):
        def run(self, feeds: Mapping[str, Array]) -> list[Array]:
            return [value.astype(np.float64) for value in super().run(feeds)]

    class Liar(Interpreted):
        def compile(self, segment: Graph, target: str, num_threads: int) -> InterpretedExecutable:
            return Wrong(segment)

    source = x()
    graph = Graph((source,), (("y", Relu(name="a", x=source)),))
    build = Compiler.of(backends=[Liar((Relu,), "liar")]).compile(graph)
    with pytest.raises(BackendError, match="liar gave float64"):
        build.executable.run(feeds_of(graph))


def test_the_callers_arrays_are_never_outputs() -> None:
    source = x()
    graph = Graph((source,), (("y", source), ("z", Relu(name="a", x=source))))
    feeds = feeds_of(graph)
    same, _ = Compiler.of(backends=[LEFT]).compile(graph).executable.run(feeds)
    assert not np.shares_memory(same, feeds["x"])


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "Reshape", "Quantize", "Dequantize"])
def test_integers_cross_borders_unchanged(kind: str) -> None:
    samples = small_samples(3)
    profile = qg.profile(qg.import_model(small_model()), samples)
    int8 = qg.quantize(qg.import_model(small_model()), profile)
    assert kind in {node.op for node in int8.nodes}
    interpreted = Interpreted((OPS[kind],), "taken")
    build = Compiler.of(num_threads=1, backends=[interpreted]).compile(int8)
    for x in samples:
        results = build.executable.run({"x": x})
        for mine, expected in zip(results, interpret(int8, {"x": x}), strict=True):
            np.testing.assert_array_equal(mine, expected)
