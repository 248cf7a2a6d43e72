"""Laws of the quantized number system."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.ir.ops.arithmetic import dequantize, quantization, quantize
from quantglow.ir.types import QuantParams
from quantglow.profiling import Range
from quantglow.quantization.plan.params import activation_element, quantize_weights
from quantglow.support.arrays import Array

reals = st.floats(-(2.0**100), 2.0**100, width=32)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    low, high = sorted((draw(reals), draw(reals)))
    return Range(low, high)


@given(ranges(), st.booleans(), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_value_in_range_moves_by_half_a_step_at_most(
    observed: Range, symmetric: bool, shares: list[float]
) -> None:
    element = activation_element(observed, symmetric)
    params = quantization(element)
    low, high = min(observed.low, 0.0), max(observed.high, 0.0)
    x = np.array([low, high, 0.0, *(low + s * (high - low) for s in shares)], np.float32)
    error = np.abs(dequantize(quantize(x, element), params).astype(np.float64) - x)
    # float32 division and multiplication round, each by half an ulp of the value.
    assert (error <= params.scale * 0.5 + np.abs(x) * 2.0**-22).all()


@given(ranges(), st.booleans())
def test_zero_is_exact_and_scales_are_normal_numbers(observed: Range, symmetric: bool) -> None:
    element = activation_element(observed, symmetric)
    params = quantization(element)
    assert dequantize(quantize(np.zeros(1, np.float32), element), params) == 0
    assert np.finfo(np.float32).tiny <= params.scale < np.inf


@st.composite
def layers(draw: st.DrawFn) -> tuple[Array, Array, QuantParams]:
    """Weights [K, channels] of any magnitude, some channels zero; a bias; input parameters."""
    channels, k = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    unit = st.floats(-1, 1, width=32)
    w = draw(hnp.arrays(np.float32, (k, channels), elements=unit))
    w = w * (
        10.0 ** np.array(draw(st.lists(st.integers(-30, 4), min_size=channels, max_size=channels)))
    )
    w[:, draw(hnp.arrays(bool, channels))] = 0
    b = draw(hnp.arrays(np.float32, channels, elements=st.floats(-1e6, 1e6, width=32)))
    scale = 10.0 ** draw(st.integers(-12, 6))
    return w.astype(np.float32), b, QuantParams.per_tensor(scale, draw(st.integers(-128, 127)))


@given(layers(), st.booleans())
def test_the_accumulator_never_overflows(
    layer: tuple[Array, Array, QuantParams], per_channel: bool
) -> None:
    w, b, x = layer
    built = quantize_weights(w, b, x, per_channel)
    assert built.bias is not None
    weights = built.weights.astype(np.int64)
    ends = np.array([-128 - x.zero_point, 127 - x.zero_point])[:, None, None]
    largest = (weights * ends).max(axis=0).sum(axis=0) + built.bias.astype(np.int64)
    smallest = (weights * ends).min(axis=0).sum(axis=0) + built.bias.astype(np.int64)
    assert largest.max() <= 2**31 - 1
    assert smallest.min() >= -(2**31)


@given(layers())
def test_weights_and_bias_are_rounded_by_half_a_step_at_most(
    layer: tuple[Array, Array, QuantParams],
) -> None:
    w, b, x = layer
    weights = quantize_weights(w, b, x)
    scales = weights.scales.astype(np.float64)
    assert weights.bias is not None
    assert (np.abs(weights.weights * scales - w) <= scales * 0.50001).all()
    assert (np.abs(weights.bias * (scales * x.scale) - b) <= scales * x.scale * 0.50001).all()


def test_a_matrix_too_tall_for_int32_gets_larger_scales() -> None:
    w = np.ones((70_000, 2), np.float32)
    weights = quantize_weights(w, None, QuantParams.per_tensor(1.0, -128))
    assert weights.weights.astype(np.int64).sum(axis=0).max() * 255 <= 2**31 - 1
