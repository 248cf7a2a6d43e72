"""Runs of several samples at once give each the values that it gets alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret, stacks
from quantglow.interpreter.executor import Execution
from quantglow.interpreter.stacks import (
    Evaluator,
    StackLayout,
    Stacks,
    in_groups,
    join,
    samples_together,
)
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.native import computing_with
from quantglow.ir.types import f32
from quantglow.runtime.native.array_ops import array_kernels
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import side_by_side
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of

SIZES = st.sampled_from([1, 2**8, 2**12, 2**19])
"""Maximum sizes of stacks: of nothing, of small values, of all."""


def alone(graph: Graph, feeds: Mapping[str, Array]) -> dict[Node, Array]:
    actual: dict[Node, Array] = {}
    interpret(graph, feeds, [actual.__setitem__])
    return actual


@pytest.mark.slow
@given(mixed_graphs(), st.integers(1, 9), SIZES, st.booleans(), st.booleans())
def test_each_sample_gets_the_values_that_it_gets_alone(
    graph: Graph, count: int, nbytes: int, is_native: bool, is_threaded: bool
) -> None:
    samples = [feeds_of(graph, seed, spread=2.0) for seed in range(count)]
    native = array_kernels() if is_native else None
    with patch.object(stacks, "STACK_NBYTES", nbytes), computing_with(native):
        expected = [alone(graph, feeds) for feeds in samples]
        if is_threaded:
            with side_by_side():
                actual = list(Execution(graph, (), Evaluator(samples).compute))
        else:
            actual = list(Execution(graph, (), Evaluator(samples).compute))
    for node, values in actual:
        if not isinstance(node, Constant):
            ours = [values.of(sample) for sample in range(count)]
            assert_equal_values(ours, [value[node] for value in expected])


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_values_are_the_same_in_every_layout(count: int, one: int, other: int, ours: int) -> None:
    evaluator = Evaluator([{} for _ in range(count)])
    rows = np.arange(2 * ours * count).reshape(-1, 2)
    samples = np.split(rows, count)
    layouts: list[StackLayout] = [evaluator.layout(one), evaluator.layout(other)]
    first = Stacks(
        [np.concatenate(samples[p.start : p.stop]) for p in layouts[0].parts], layouts[0]
    )
    second = Stacks(first.parts(layouts[1]), layouts[1])
    for values in (first, second):
        np.testing.assert_array_equal(np.concatenate(values.arrays), rows)
        for sample, expected in enumerate(samples):
            np.testing.assert_array_equal(values.of(sample), expected)
    np.testing.assert_array_equal(first.stack(range(0, count, 2)), np.concatenate(samples[::2]))
    doubled = first.mapped(np.add, second)
    np.testing.assert_array_equal(np.concatenate(doubled.arrays), 2 * rows)


@pytest.mark.parametrize(("outputs", "together"), [(16, 2), (256, 4), (512, 8)])
def test_samples_are_stacked_up_to_the_size_of_weights(outputs: int, together: int) -> None:
    x = Input(name="x", tensor=f32(1, 7, 7, 1024))  # 196 KiB
    weights = np.zeros((1, 1, 1024, outputs), np.float32)
    assert (
        samples_together(ops.Conv(name="y", x=x, w=Constant(name="w", value=weights))) == together
    )


X = Input(name="x", tensor=f32(1, 4, 3))
ROW = Input(name="x", tensor=f32(4))
SAMPLE = Constant(name="c", value=np.ones((1, 4, 3), np.float32))
MIXED: dict[str, Node] = {
    "sum of all": ops.ReduceSum(name="y", x=X, axes=(0, 1), keepdims=True),
    "transpose": ops.Transpose(name="y", x=X, perm=(1, 0, 2)),
    "other first axis": ops.Reshape(name="y", x=X, shape=(2, 6)),
    "constant part": ops.Concat(name="y", parts=(X, SAMPLE), axis=2),
    "along samples": ops.Concat(name="y", parts=(X, X), axis=0),
    "softmax of samples": ops.Softmax(name="y", x=ROW),
    "nothing computed": ops.Relu(name="y", x=SAMPLE),
}


@pytest.mark.parametrize("name", MIXED)
def test_operators_that_mix_samples_are_not_stacked(name: str) -> None:
    assert join(MIXED[name], 2) is None


def test_a_view_takes_the_shape_of_the_stack() -> None:
    reshape = join(ops.Reshape(name="y", x=X, shape=(1, 12)), 3)
    assert reshape is not None
    assert reshape.type.shape == (3, 12)


@pytest.mark.parametrize(
    ("count", "nbytes", "groups", "sizes"),
    [(10, 1, 1, [8, 2]), (8, 1, 2, [4, 4]), (3, 2**40, 1, [1, 1, 1]), (1, 1, 4, [1])],
)
def test_groups_fit_memory_and_threads(
    count: int, nbytes: int, groups: int, sizes: Sequence[int]
) -> None:
    assert [len(group) for group in in_groups(range(count), nbytes, groups)] == sizes
