"""RowMap: sums and maxima of rows inside expressions, on short and long rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import (
    Add,
    Dequantize,
    LayerNormalization,
    LogSoftmax,
    Quantize,
    RowMap,
    Softmax,
)
from quantglow.ir.ops.functions import row_sum
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from tests.matrix.harness import TARGETS, assert_targets_agree, in_turn, on_llvm, planned
from tests.support.effort import expensive

LENGTHS = (1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 200, 384, 389)
SCORES = ElementType(DType.I8, QuantParams.per_tensor(1 / 255, -128))
NARROW = ElementType(DType.I8, QuantParams.per_tensor(0.037, -3))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def parameters(length: int) -> dict[str, Constant]:
    names = {"gamma": 3, "beta": 4}
    return {n: Constant(name=n, value=normal(seed, length)) for n, seed in names.items()}


def kernels(graph: Graph) -> list[type]:
    program, _ = planned(graph)
    return [type(step.op) for step in program.instructions if isinstance(step, Compute)]


@expensive
@given(
    length=st.sampled_from(LENGTHS),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    seed=st.integers(0, 2**32 - 1),
)
def test_masked_softmax_agrees_on_every_target(length: int, shape: tuple, seed: int) -> None:
    x = Input(name="x", tensor=f32(*shape, length))
    mask = Input(name="mask", tensor=f32(1, shape[1], length))
    masked = Add(name="masked", x=x, y=mask)
    y, z = Softmax(name="y", x=masked), LogSoftmax(name="z", x=masked)
    hidden = np.where(normal(seed + 1, *mask.type.shape) < 0, np.finfo(np.float32).min, 0)
    hidden[..., 0] = 0  # only LogSoftmax overflows on a row of the lowest number
    feeds = {"x": normal(seed, *x.type.shape), "mask": hidden.astype(np.float32)}
    for node in (y, z):
        assert_targets_agree(Graph((x, mask), (("out", node),)), feeds, targets=in_turn(seed))


@expensive
@given(
    length=st.sampled_from(LENGTHS),
    rows=st.integers(1, 5),
    zero_point=st.sampled_from((-128, -127, 0, 5, 127)),
    fill=st.sampled_from((None, -128, 0, 127)),
    seed=st.integers(0, 2**32 - 1),
)
def test_normalization_of_integers_is_equal_bit_for_bit(
    length: int, rows: int, zero_point: int, fill: int | None, seed: int
) -> None:
    params = QuantParams.per_tensor(0.4, zero_point)
    x = Input(name="x", tensor=TensorType(DType.I8, (rows, length), params))
    real = Dequantize(name="real", x=x)
    y = LayerNormalization(name="y", x=real, **parameters(length))
    graph = Graph((x,), (("out", Quantize(name="q", x=y, out=NARROW)),))
    codes = np.random.default_rng(seed).integers(-128, 128, x.type.shape)
    if fill is not None:
        codes[0] = fill
    assert_targets_agree(graph, {"x": codes.astype(np.int8)}, targets=in_turn(seed))


@pytest.mark.slow_variants(2)
@pytest.mark.parametrize("length", LENGTHS)
def test_normalization_gives_the_same_floats_everywhere(length: int) -> None:
    x = Input(name="x", tensor=f32(5, length))
    y = LayerNormalization(name="y", x=x, **parameters(length))
    graph, values = Graph((x,), (("out", y),)), normal(length, 5, length)
    actual = [on_llvm(graph, {"x": values}, target)[0] for target in TARGETS]
    expected = y.evaluate(values, *(p.value for p in parameters(length).values()))
    for got in actual:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow_variants(2)
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_gives_the_same_floats_everywhere(length: int) -> None:
    x = Input(name="x", tensor=f32(5, length))
    y, values = Softmax(name="y", x=x), 20 * normal(length, 5, length)
    values[0, 1::2] = np.finfo(np.float32).min
    graph = Graph((x,), (("out", y),))
    for target in TARGETS:
        np.testing.assert_array_equal(on_llvm(graph, {"x": values}, target)[0], y.evaluate(values))


def test_softmax_absorbs_its_mask_and_its_rounding() -> None:
    x, mask = Input(name="x", tensor=f32(2, 3, 40)), Input(name="m", tensor=f32(1, 3, 40))
    shares = Softmax(name="s", x=Add(name="a", x=x, y=mask))
    graph = Graph((x, mask), (("out", Quantize(name="q", x=shares, out=SCORES)),))
    assert kernels(graph).count(RowMap) == 1
    assert len(kernels(graph)) == 2  # the other one gives the output its sign


@given(length=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_row_sum_is_the_sum(length: int, seed: int) -> None:
    values = normal(seed, 3, length)
    expected = values.sum(axis=-1, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(row_sum(values), expected, atol=1e-5 * np.abs(values).sum())
