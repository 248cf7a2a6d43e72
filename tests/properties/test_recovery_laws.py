"""Laws of accuracy recovery on drawn layers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.ir.ops.arithmetic import F32
from quantglow.quantization.rounding import TECHNIQUES
from quantglow.quantization.rounding.layer import Layer
from quantglow.quantization.rounding.layerwise import FED_BACK
from quantglow.quantization.rounding.techniques import correct_bias, limit_dead_inputs
from tests.unit.quantization.rounding.recovery_layers import X, data_error, layer_of


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Few or many rows, inputs that are always 0, also with weights far larger than all others,
    channels of any magnitude, noisy results.
    """
    rows, k, outputs = draw(st.integers(1, 60)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.integers(-128, 128, (rows, k)) - X.zero_point
    live = rng.integers(0, 2, k) if draw(st.booleans()) else np.ones(k, int)
    x = x * live
    magnitudes = draw(hnp.arrays(np.int64, outputs, elements=st.integers(-20, 4)))
    w = F32(rng.normal(size=(k, outputs)) * 10.0**magnitudes)
    w[live == 0] *= F32(10.0 ** draw(st.integers(0, 6)))
    b = F32(rng.normal(size=outputs) * 10.0 ** draw(st.integers(-6, 6)))
    noise = draw(st.sampled_from((0.0, 0.01, 1.0)))
    y = x @ (w.astype(np.float64) * X.scale) + b
    y = y + noise * np.abs(y).max() * rng.normal(size=y.shape)
    return layer_of(x.astype(np.float64), w.astype(np.float64), b, expected=y)


def after(layer: Layer, names: list[str]) -> Layer:
    layer = layer if FED_BACK.isdisjoint(names) else limit_dead_inputs(layer)
    for name, technique in TECHNIQUES.items():
        layer = technique(layer) if name in names else layer
    return layer


techniques = st.lists(st.sampled_from(list(TECHNIQUES)), unique=True)


@given(layers(), techniques)
def test_no_channel_gets_a_larger_error_on_its_own_data(layer: Layer, names: list[str]) -> None:
    actual = after(layer, names)
    after_error = data_error(actual)
    assert (after_error <= data_error(layer)).all()


@given(layers(), techniques)
def test_the_accumulator_never_overflows(layer: Layer, names: list[str]) -> None:
    actual = after(layer, names)
    bias = np.rint(actual.bias / actual.steps)
    weights = actual.integers
    ends = np.array([-128 - X.zero_point, 127 - X.zero_point])[:, None, None, None]
    assert ((weights * ends).max(axis=0).sum(axis=1) + bias[:, 0]).max() <= 2**31 - 1
    assert ((weights * ends).min(axis=0).sum(axis=1) + bias[:, 0]).min() >= -(2**31)


@given(layers(), techniques)
def test_weights_are_integers_of_at_most_127(layer: Layer, names: list[str]) -> None:
    actual = after(layer, names)
    assert (np.rint(actual.integers) == actual.integers).all()
    assert np.abs(actual.integers).max() <= 127


@given(layers(), techniques)
def test_steps_are_what_float32_scales_give(layer: Layer, names: list[str]) -> None:
    actual = after(layer, names)
    scales = (actual.steps / X.scale).astype(np.float32)
    np.testing.assert_array_equal(scales.astype(np.float64) * X.scale, actual.steps)


@given(layers())
def test_correcting_the_bias_twice_changes_nothing_more(layer: Layer) -> None:
    once = correct_bias(layer)
    np.testing.assert_array_equal(correct_bias(once).bias, once.bias)
