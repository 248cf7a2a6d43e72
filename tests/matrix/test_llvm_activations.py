"""Activations in the epilogue: one rounding, and the same integers everywhere for any sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.ops.activation import Activation
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.generators.values import activations
from tests.matrix.harness import TARGETS, on_llvm, on_reference
from tests.support.effort import moderate

TIES = (
    # activation, step, sum in reals: result in steps
    (Activation("HardSwish"), 2.0, {5: 2, 7: 4, 9: 4, 3: 2, -3: 0, -4: 0, 11: 6}),
    (Activation("HardSwish", factor=-1.0), 2.0, {5: -2, 7: -4, 9: -4, -3: 0}),
    (Activation("HardSigmoid", (0.25, 0.5)), 0.5, {1: 2, -1: 0, 0: 1, 2: 2, -2: 0, 100: 2}),
    (Activation("HardSigmoid", (0.25, 0.5), 1.0, 1.0), 0.5, {1: 4, -1: 2, 0: 3}),
    (Activation("LeakyRelu", (0.25,)), 1.0, {-2: 0, -6: -2, -10: -2, 3: 3}),
)


def pointwise(
    activation: Activation,
    codes: np.ndarray,
    scale: float,
    out: ElementType,
    channels: int = 1,
    **fields: float,
) -> tuple[Graph, dict[str, np.ndarray]]:
    """An int8 convolution [N, 1, W, 1] -> [N, 1, W, channels] whose sums are the codes times
    ``scale``."""
    element = ElementType(DType.I8, QuantParams.per_tensor(1.0, 0))
    x = Input(name="x", tensor=TensorType(DType.I8, codes.shape, element.quant))
    weights = ElementType(DType.I8, QuantParams.symmetric(np.full(channels, scale), 3))
    w = Constant(name="w", value=np.ones((1, 1, 1, channels), np.int8), element=weights)
    y = Conv(name="y", x=x, w=w, activation=activation, out=out, **fields)
    return Graph((x,), (("y", y),)), {"x": codes}


def image(codes: list[int]) -> np.ndarray:
    return np.array(codes, np.int8).reshape(1, 1, -1, 1)


@pytest.mark.parametrize(("activation", "step", "expected"), TIES)
@pytest.mark.parametrize("zero_point", [0, -128])
@pytest.mark.parametrize("dtype", [DType.I8, DType.I16])
def test_ties_round_to_even(
    activation: Activation, step: float, expected: dict[int, int], zero_point: int, dtype: DType
) -> None:
    zero_point = zero_point if dtype is DType.I8 else 0
    out = ElementType(dtype, QuantParams.per_tensor(step, zero_point))
    graph, feeds = pointwise(activation, image([*expected]), 1.0, out)
    low, high = dtype.limits
    want = [min(max(steps + zero_point, low), high) for steps in expected.values()]
    for run in (interpret, on_reference, *(_on(target) for target in TARGETS)):
        assert run(graph, feeds)[0].reshape(-1).tolist() == want


def _on(target: str):
    return lambda graph, feeds: on_llvm(graph, feeds, target)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", TARGETS)
@moderate
@given(
    activation=activations(),
    scale=st.sampled_from([1e-38, 1e-6, 1e-2, 0.25, 1e6, 1e25, 3e38]),
    step=st.sampled_from([1e-38, 1e-30, 1e-3, 0.5, 1e8, 3e38]),
    zero_point=st.sampled_from([-128, 0, 127]),
    dtype=st.sampled_from([DType.I8, DType.I16]),
    bounds=st.sampled_from([(-np.inf, np.inf), (0.0, 0.5)]),
    channels=st.sampled_from([1, 17, 64]),
)
def test_extreme_numbers_give_the_same_integers(
    target: str,
    activation: Activation,
    scale: float,
    step: float,
    zero_point: int,
    dtype: DType,
    bounds: tuple[float, float],
    channels: int,
) -> None:
    """Sums and constants beyond float32 are included: NaN becomes the lowest integer."""
    out = ElementType(dtype, QuantParams.per_tensor(step, zero_point if dtype is DType.I8 else 0))
    codes = image([-128, -127, -3, -1, 0, 1, 2, 3, 5, 127])
    low, high = bounds
    graph, feeds = pointwise(activation, codes, scale, out, channels, low=low, high=high)
    with np.errstate(all="ignore"):
        (want,), (planned,) = interpret(graph, feeds), on_reference(graph, feeds)
        (got,) = on_llvm(graph, feeds, target)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(planned, want)


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_batch_gives_an_empty_result(target: str) -> None:
    out = ElementType(DType.I8, QuantParams.per_tensor(0.1, 0))
    empty = np.zeros((0, 1, 5, 1), np.int8)
    graph, feeds = pointwise(Activation("HardSwish"), empty, 0.1, out)
    assert on_llvm(graph, feeds, target)[0].shape == interpret(graph, feeds)[0].shape


@pytest.mark.parametrize("target", TARGETS)
def test_one_rounding_is_the_exact_function_but_for_ties(target: str) -> None:
    out = ElementType(DType.I8, QuantParams.per_tensor(0.03, -118))
    codes = image(list(range(-128, 128)))
    graph, feeds = pointwise(Activation("HardSwish"), codes, 0.05, out)
    reals = codes.astype(np.float64) * np.float32(0.05)
    steps = reals * np.clip(reals / 6 + 0.5, 0, 1) / np.float32(0.03)
    exact = np.clip(np.rint(steps) - 118, -128, 127)
    away = np.abs(steps - np.floor(steps) - 0.5) > 1e-4
    (got,) = on_llvm(graph, feeds, target)
    np.testing.assert_array_equal(got[away], exact[away])
