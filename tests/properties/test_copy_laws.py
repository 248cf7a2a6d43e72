"""Numbers that enter a quantized model and leave it, only moved, are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Concat, Expand, Gather, Pad, Slice
from quantglow.ir.types import DType, ElementType
from quantglow.profiling import profile
from quantglow.quantization.quantizer import QuantizedGraph, quantize_for_all_shapes
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.support.builder import Builder
from tests.support.effort import moderate
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import samples_for


def transposed(b: Builder, x: Node) -> Node:
    return b.transpose(x, 0, 2, 1, 3)


def reshaped(b: Builder, x: Node) -> Node:
    n, c, h, w = x.type.shape
    return b.reshape(x, n, h, c, w)


def sliced(b: Builder, x: Node) -> Node:
    n, c, h, w = x.type.shape
    sizes = (n, (c + 1) // 2, h, w)
    return b.make(Slice, x=x, starts=(0, c // 2, h - 1, 0), sizes=sizes, steps=(1, 1, -1, 1))


def padded(b: Builder, x: Node) -> Node:
    return b.make(Pad, x=x, before=(0, 0, 1, 0), after=(0, 1, 0, 0), value=0.7)


def gathered(b: Builder, x: Node) -> Node:
    places = b.make_constant(np.array([0, 0]), ElementType(DType.I64))
    return b.make(Gather, x=x, indices=places, axis=1)


def expanded(b: Builder, x: Node) -> Node:
    n, c, h, w = x.type.shape
    row = b.make(Slice, x=x, starts=(0, 0, 0, 0), sizes=(n, c, 1, w), steps=(1, 1, 1, 1))
    return b.make(Expand, x=row, shape=(n, c, h, w))


def joined(b: Builder, x: Node) -> Node:
    """Rows that a layer computes behind those of x, as a cache has them."""
    return b.make(Concat, parts=(x, b.conv(x, x.type.shape[1])), axis=1)


MOVES = (transposed, reshaped, sliced, padded, gathered, expanded, joined)


@st.composite
def copying(draw: st.DrawFn) -> Graph:
    """Moves of an input, outputs of some of them, and layers that read others."""
    b = Builder(draw(st.integers(0, 2**16)))
    values: list[Node] = [b.input(1, draw(st.integers(1, 4)), 3, draw(st.integers(1, 4)))]
    for move in draw(st.lists(st.sampled_from(MOVES), min_size=1, max_size=5)):
        values.append(move(b, draw(st.sampled_from(values[-2:]))))
    ends = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
    return b.graph(*ends, *(b.conv(b.conv(x, 3, kernel=1), 2, kernel=1) for x in read))


def quantized(graph: Graph) -> QuantizedGraph:
    samples = samples_for(graph)
    return quantize_for_all_shapes(graph, profile(graph, samples, progress=False), data=samples)


def copied(graph: Graph, feeds: list[dict[str, Array]]) -> list[Array]:
    """Masks of the numbers in outputs of the float graph that are the input's for every feed."""
    actual = [[np.isin(y, list(x.values())) for y in interpret(graph, x)] for x in feeds]
    return [np.logical_and.reduce(places) for places in zip(*actual, strict=True)]


@moderate
@given(copying())
def test_numbers_of_an_input_leave_the_int8_graph_as_they_came(drawn: Graph) -> None:
    graph, feeds = optimize(drawn), samples_for(drawn, 3, seed=2)
    int8 = quantized(graph).graph
    places = copied(graph, feeds)
    assume(any(place.any() for place in places))
    for x in feeds:
        for place, y, z in zip(places, interpret(graph, x), interpret(int8, x), strict=True):
            np.testing.assert_array_equal(z[place], y[place])


@pytest.mark.slow
@moderate
@given(copying())
def test_decisions_by_name_give_the_same_copies(drawn: Graph) -> None:
    graph = optimize(drawn)
    quantized_model = quantized(graph)
    assert same_graph(quantized_model.decisions.apply(graph), quantized_model.graph)
