"""Constants are computed at compile time, and those that repeat rows are not made larger."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Add, Expand, Gather, Mul, Sub
from quantglow.transforms import float as passes
from quantglow.transforms.float.elimination import drop_expand
from quantglow.transforms.rewrite import run_passes
from tests.support.builder import Builder

WIDTH = 384


def embedded(batch: int, length: int) -> Graph:
    """Words, to which the row of the only kind of token is added, and positions."""
    b = Builder()
    words = b.input(batch, length, WIDTH)
    kinds = Constant(name=b.name("kinds"), value=np.zeros((batch, length), np.int64))
    kind = b.make(Gather, x=b.drawn(2, WIDTH), indices=kinds, axis=0)
    added = b.make(Add, x=words, y=kind)
    return b.graph(b.make(Add, x=added, y=b.drawn(1, length, WIDTH)))


@pytest.mark.parametrize("batch", [1, 2, 4, 9])
def test_a_batch_changes_no_sum(batch: int) -> None:
    graph = embedded(batch, 200)
    optimized = passes.optimize(graph)
    assert [type(node) for node in optimized.compute_nodes()] == [Add]
    x = np.random.default_rng(0).standard_normal((batch, 200, WIDTH), dtype=np.float32)
    (name,) = [node.name for node in graph.inputs]
    (actual,), (expected,) = interpret(optimized, {name: x}), interpret(graph, {name: x})
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    single = passes.optimize(embedded(1, 200))
    for i in range(batch):
        (row,) = interpret(single, {name: x[i : i + 1]})
        np.testing.assert_array_equal(row[0], actual[i])


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (3, 4)])
def test_repetitions_are_left_to_the_reader(shape: tuple[int, ...]) -> None:
    b = Builder()
    x, y = b.input(3, 4), b.input(*shape)
    graph = b.graph(b.make(Mul, x=x, y=b.make(Expand, x=y, shape=(3, 4))))
    optimized = run_passes(graph, [drop_expand])
    assert [type(node) for node in optimized.compute_nodes()] == [Mul]


def test_repetitions_that_the_reader_needs_stay() -> None:
    b = Builder()
    x, y = b.input(1, 4), b.input(1, 1)
    graph = b.graph(b.make(Mul, x=x, y=b.make(Expand, x=y, shape=(3, 4))))
    optimized = run_passes(graph, [drop_expand])
    assert Expand in [type(node) for node in optimized.compute_nodes()]


@pytest.mark.parametrize("is_left", [False, True])
def test_a_constant_that_is_equal_for_all_samples_is_that_of_one(is_left: bool) -> None:
    b = Builder()
    x, y = b.input(3, 5, 4), b.constant(np.repeat(b.drawn(1, 1, 4).value, 3, axis=0))
    graph = b.graph(b.make(Sub, x=y, y=x) if is_left else b.make(Sub, x=x, y=y))
    (built,) = run_passes(graph, [drop_expand]).compute_nodes()
    assert sorted(operand.type.shape for operand in built.operands) == [(1, 1, 4), (3, 5, 4)]


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (1, 4)])
def test_a_constant_of_one_number_is_that_number(shape: tuple[int, ...]) -> None:
    b = Builder()
    graph = b.graph(b.make(Mul, x=b.input(2, 3, 4), y=b.constant(np.full(shape, 0.5))))
    (built,) = run_passes(graph, [drop_expand]).compute_nodes()
    assert built.operands[1].type.shape == (1,) * len(shape)


@pytest.mark.parametrize(
    "case", ["differs", "differs in sign", "makes the result larger", "has more axes", "is empty"]
)
def test_other_constants_stay(case: str) -> None:
    b = Builder()
    x, y = {
        "differs in sign": (b.input(1, 2), b.constant(np.float32([[0.0, -0.0]]))),
        "is empty": (b.input(0, 4), b.constant(np.ones((0, 1)))),
        "differs": (b.input(3, 4), b.drawn(3, 4)),
        "makes the result larger": (b.input(1, 4), b.constant(np.ones((3, 1)))),
        "has more axes": (b.input(3, 4), b.constant(np.ones((1, 3, 4)))),
    }[case]
    graph = b.graph(b.make(Mul, x=x, y=y))
    assert run_passes(graph, [drop_expand]) is graph
