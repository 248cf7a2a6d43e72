"""A graph as data: all nodes but constants, their edges, and blocks by common names."""

from __future__ import annotations

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Add, Mul
from quantglow.ir.types import f32
from quantglow.report.drawing import DrawnGraph, blocks
from tests.support.frames import unpacked
from tests.support.small_network import small_model, small_samples

SCALE = Constant(name="scale", value=np.float32([2.0]))


def test_constants_are_not_drawn() -> None:
    x = Input(name="x", tensor=f32(2))
    graph = Graph((x,), (("y", Mul(name="y", x=x, y=SCALE)),))
    drawn = DrawnGraph.of(graph)
    assert [node.name for node in drawn.nodes] == ["x", "y"]
    assert drawn.edges == ((0, 1),)


def test_an_operand_read_twice_is_one_edge() -> None:
    x = Input(name="x", tensor=f32(2))
    assert DrawnGraph.of(Graph((x,), (("y", Add(name="y", x=x, y=x)),))).edges == ((0, 1),)


def test_edges_go_to_later_nodes() -> None:
    drawn = DrawnGraph.of(qg.import_model(small_model()))
    assert drawn.edges
    assert all(source < target for source, target in drawn.edges)


def test_precision_is_that_of_the_result() -> None:
    graph = qg.import_model(small_model())
    int8 = qg.quantize(graph, qg.profile(graph, small_samples(), progress=False))
    actual = {node.precision for node in DrawnGraph.of(int8).nodes}
    assert actual == {"int8", "float"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/a/b/x", "/a/b/y", "/a/z", "/c/x"], [("a", "b"), ("a", "b"), ("a",), ()]),
        (["a.b.x", "a.b.y", "c.x", "c.y"], [("a",), ("a",), ("c",), ("c",)]),
        (["s1_x", "s1_y", "s2_x", "s2_y"], [("s1",), ("s1",), ("s2",), ("s2",)]),
        (["12", "13", "14"], [(), (), ()]),
        (["/m/a/x", "/m/a/y", "/m/b"], [("a",), ("a",), ()]),
        ([], []),
    ],
    ids=["nested", "alone-in-its-block", "underscores", "numbers", "common-to-all", "empty"],
)
def test_blocks_are_the_parts_that_some_names_share(
    names: list[str], expected: list[tuple[str, ...]]
) -> None:
    assert blocks(names) == expected


def test_a_graph_draws_itself_in_a_notebook() -> None:
    text = qg.import_model(small_model())._repr_html_()
    assert text.startswith("<iframe srcdoc=")
    assert "Graph of 7 nodes" in unpacked(text)
