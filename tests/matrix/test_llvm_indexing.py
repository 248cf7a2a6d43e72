"""Gather, Scatter and TopK on every element type and target, at indices in and out of range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.targets import resolve
from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Gather, Scatter, TopK, Transpose
from quantglow.ir.types import DType, TensorType
from quantglow.runtime.native.compilation import compile_program
from quantglow.support.arrays import Array
from quantglow.support.errors import OutOfRangeError
from tests.generators.quantized_graphs.drawing import CHANNELS
from tests.matrix.harness import TARGETS, assert_targets_agree, planned
from tests.support.combinations import covering
from tests.support.effort import expensive
from tests.support.guarded import guarded

seeds = st.integers(0, 9999)
NUMBERS = [dtype for dtype in DType if not dtype.is_object]

indices_of = st.sampled_from([DType.I32, DType.I64])


def values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Few different values, so that some are equal; NaN among the floats."""
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    drawn = rng.integers(0, 5, shape).astype(dtype.numpy)
    if dtype.is_float:
        return np.where(rng.random(shape) < 0.2, np.nan, drawn - 2).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, dtype.limits[0], drawn).astype(dtype.numpy)


def far(rng: np.random.Generator, dtype: DType, size: int, count: int) -> Array:
    """Indices in range, or also outside of ``size``, the extremes of the type among them."""
    if rng.integers(2):
        return rng.integers(-size, size, count).astype(dtype.numpy)
    drawn = rng.integers(-2 * size, 2 * size, count).astype(dtype.numpy)
    return np.where(rng.random(count) < 0.2, rng.choice([*dtype.limits], count), drawn).astype(
        dtype.numpy
    )


def check(rng: np.random.Generator, output: Node, feeds: dict[Input, Array]) -> None:
    graph = Graph(tuple(feeds), (("y", output),))
    on_guard = {n.name: guarded(a, at_end=bool(rng.integers(2))) for n, a in feeds.items()}
    try:
        interpret(graph, on_guard)
    except OutOfRangeError as error:
        assert_all_refuse(graph, on_guard, error)
    else:
        assert_targets_agree(graph, on_guard)


def assert_all_refuse(graph: Graph, feeds: dict[str, Array], error: OutOfRangeError) -> None:
    """All backends name the node and one of the indices, and compiled code still runs
    afterwards.
    """
    indices, rows = feeds["i"], error.length
    outside = indices[(indices < -rows) | (indices >= rows)]
    program, plan = planned(graph)
    compiled = [compile_program(program, plan, resolve(name), 2) for name in TARGETS]
    for executable in (ReferenceExecutable(program, plan), *compiled, *compiled):
        with pytest.raises(OutOfRangeError) as actual:
            executable.run(feeds)
        assert (actual.value.node, actual.value.length) == (error.node, rows)
        assert actual.value.index in outside
    within = {**feeds, "i": np.zeros_like(indices)}
    for executable in compiled:
        np.testing.assert_array_equal(executable.run(within), interpret(graph, within))


@pytest.mark.slow_variants
@pytest.mark.parametrize("dtype", NUMBERS)
@expensive
@given(st.sampled_from(CHANNELS), st.integers(0, 2), indices_of, st.booleans(), seeds)
def test_gather_stays_inside(
    dtype: DType, inner: int, axis: int, index_type: DType, transposed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 5)), inner)
    x = Input(name="x", tensor=TensorType(dtype, shape))
    indices = Input(name="i", tensor=TensorType(index_type, (5,)))
    source = Transpose(name="t", x=x, perm=(1, 0, 2)) if transposed else x
    node = Gather(name="y", x=source, indices=indices, axis=axis)
    chosen = far(rng, index_type, source.type.shape[axis], 5)
    check(rng, node, {x: values(rng, dtype, shape), indices: chosen})


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("dtype", "reduction"), covering(NUMBERS, ["none", "add", "mul", "max", "min"])
)
@expensive
@given(st.sampled_from(CHANNELS), indices_of, seeds)
def test_scatter_stays_inside_and_keeps_the_order(
    dtype: DType, reduction: str, inner: int, index_type: DType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, count = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    x = Input(name="x", tensor=TensorType(dtype, (rows, inner)))
    indices = Input(name="i", tensor=TensorType(index_type, (count,)))
    updates = Input(name="u", tensor=TensorType(dtype, (count, inner)))
    node = Scatter(name="y", x=x, indices=indices, updates=updates, reduction=reduction)
    feeds = {x: values(rng, dtype, x.type.shape), updates: values(rng, dtype, updates.type.shape)}
    check(rng, node, {**feeds, indices: far(rng, index_type, rows, count)})


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("dtype", "largest"),
    covering([d for d in NUMBERS if d is not DType.BOOL], [True, False]),
)
@expensive
@given(st.sampled_from(CHANNELS), st.integers(1, 9), seeds)
def test_top_k_of_equal_elements_is_the_first(
    dtype: DType, largest: bool, length: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = Input(name="x", tensor=TensorType(dtype, (int(rng.integers(1, 4)), length)))
    node = TopK(name="y", x=x, k=min(k, length), largest=largest)
    check(rng, node, {x: values(rng, dtype, x.type.shape)})
