"""Parts of Constants of a free length are computed at compile time, as whole Constants."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Add, Expand, Gather, Mul, Reshape, Slice
from quantglow.ir.symbolic.size import symbols
from quantglow.transforms import float as passes
from tests.support.builder import Builder

LONGEST = 12


def table(b: Builder, rows: int = LONGEST, width: int = 4) -> Constant:
    return b.drawn(rows, width)


def cut(b: Builder, whole: Node, length: int) -> Node:
    """The first rows of a value."""
    remaining = whole.type.shape[1:]
    starts, steps = (0,) * whole.type.rank, (1,) * whole.type.rank
    return b.make(Slice, x=whole, starts=starts, sizes=(length, *remaining), steps=steps)


def positions(b: Builder, x: Node, length: int) -> Node:
    """A table looked up at the first numbers."""
    numbers = Constant(name=b.name("n"), value=np.arange(LONGEST)[::-1].copy())
    return b.make(Gather, x=table(b), indices=cut(b, numbers, length), axis=0)


def reshaped(b: Builder, x: Node, length: int) -> Node:
    return b.make(Reshape, x=cut(b, table(b), length), shape=(1, length, 4))


def split(b: Builder, x: Node, length: int) -> Node:
    """Blocks of a table's rows, put together again."""
    blocks = b.make(Reshape, x=cut(b, table(b), length), shape=(length, 2, 2))
    return b.make(Reshape, x=blocks, shape=(1, length, 4))


def product(b: Builder, x: Node, length: int) -> Node:
    return b.make(Mul, x=cut(b, table(b), length), y=b.drawn(4))


def expanded(b: Builder, x: Node, length: int) -> Node:
    return b.make(Expand, x=b.drawn(4), shape=(length, 4))


def sums(b: Builder, x: Node, length: int) -> Node:
    return b.make(Add, x=cut(b, table(b), length), y=cut(b, table(b), length))


PARTS = (positions, reshaped, split, product, expanded, sums)


def graph_of(part, length: int) -> Graph:
    b = Builder()
    x = b.input(2, length, 4)
    added = b.make(Add, x=x, y=part(b, x, length))
    return b.graph(b.make(Add, x=added, y=part(b, x, length)))


@pytest.mark.parametrize("part", PARTS)
def test_only_the_sum_with_the_input_is_left(part) -> None:
    sizes, guards = symbols({"T": 7})
    optimized = passes.optimize(graph_of(part, sizes["T"]))
    assert [type(n) for n in optimized.compute_nodes() if not isinstance(n, Slice)] == [Add]
    assert guards.hold({"T": 9})


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("length", [7, LONGEST])
def test_the_value_is_that_of_one_length(part, length: int) -> None:
    graph = graph_of(part, length)
    x = {graph.inputs[0].name: np.random.default_rng(1).random((2, length, 4), np.float32)}
    free = passes.optimize(graph_of(part, symbols({"T": length})[0]["T"]))
    for value, expected in zip(interpret(free, x), interpret(graph, x), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
