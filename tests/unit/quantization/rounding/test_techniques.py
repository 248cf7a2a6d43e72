"""Each technique lowers the error it is there for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.quantization.rounding.moments import Moments, exact_slices, feedback, unit_factors
from quantglow.quantization.rounding.techniques import (
    adapt_weights,
    correct_bias,
    round_weights,
    round_with_feedback,
    search_scales,
)
from tests.unit.quantization.rounding.recovery_layers import (
    correlated_inputs,
    data_error,
    layer_of,
    real_weights,
    square_error,
)

RNG = np.random.default_rng(5)
W, B = RNG.normal(size=(12, 7)), RNG.normal(size=7)
CALIBRATION, UNSEEN = correlated_inputs(600, 12)[:400], correlated_inputs(600, 12)[400:]


def test_the_factors_of_the_metric_give_it_back() -> None:
    metric = layer_of(CALIBRATION, W, B).statistics.metric.astype(np.float64)
    order = np.arange(12)[None, :, None]
    f = unit_factors(metric, order)[0]
    d = np.linalg.solve(f, np.linalg.solve(f, metric[0]).T)
    np.testing.assert_allclose(d - np.diag(np.diag(d)), 0, atol=1e-9 * np.abs(metric).max())


def test_without_correlations_rounding_is_to_nearest() -> None:
    w = 50 * W[None]
    np.testing.assert_array_equal(round_with_feedback(w, feedback(np.eye(12)[None])), np.rint(w))


def test_rounding_is_the_same_in_blocks_and_row_by_row() -> None:
    x = correlated_inputs(900, 150)
    w = RNG.normal(size=(150, 3))
    layer = layer_of(x, w, np.zeros(3))
    target, metric = (a.astype(np.float64) for a in (layer.target, layer.statistics.metric))
    actual = round_with_feedback(target, feedback(metric))
    assert np.abs(actual).max() <= 127
    order = np.argsort(-np.diagonal(metric[0]), kind="stable")
    f = unit_factors(metric, order[None, :, None])[0]
    expected = target[0][order]
    errors = expected - actual[0][order]
    # Each weight is the nearest integer to itself plus what the earlier ones left.
    left = errors + np.tril(f.T, -1) @ errors
    assert np.abs(left[np.abs(actual[0][order]) < 127]).max() <= 0.5 + 1e-9


def test_rounding_against_data_helps_on_unseen_data() -> None:
    layer = correct_bias(layer_of(CALIBRATION, W, B))
    y = UNSEEN @ real_weights(layer)[0] + B
    before, after = square_error(layer, UNSEEN, y), square_error(round_weights(layer), UNSEEN, y)
    assert after.sum() < 0.5 * before.sum()


def test_the_scale_search_helps_where_one_weight_is_alone() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.integers(-120, 120, (4000, 400)), rng.uniform(-0.5, 0.5, (400, 2))
    x[:, 3], w[3] = np.arange(4000) % 2, 1.0
    layer = round_weights(layer_of(x, w, np.zeros(2)))
    actual = search_scales(layer)
    assert data_error(actual).sum() < (data_error(layer).sum())


def test_correcting_the_bias_takes_the_mean_error_away() -> None:
    layer = correct_bias(layer_of(CALIBRATION, W, B))
    y = CALIBRATION @ real_weights(layer)[0] + B
    error = CALIBRATION @ (layer.integers * layer.steps)[0] + layer.bias[0] - y
    # The moments hold float32 results.
    np.testing.assert_allclose(error.mean(axis=0), 0, atol=1e-5)


def test_adapted_weights_undo_an_error_of_the_input() -> None:
    """The layer before lost a third of input 0; the float model did not."""
    x = correlated_inputs(800, 4)
    whole = x.copy()
    whole[:, 0] *= 1.5
    y = whole @ W[:4] * 0.05 + B
    plain = layer_of(x, W[:4], B, expected=y)
    adapted = correct_bias(adapt_weights(plain))
    assert square_error(adapted, x, y).sum() < 0.01 * square_error(plain, x, y).sum()


def test_noise_in_the_wanted_results_is_hardly_learned() -> None:
    deviation, rows = 3.0, len(CALIBRATION)
    noise = np.random.default_rng(3).normal(size=(rows, 7)) * deviation
    layer = adapt_weights(layer_of(CALIBRATION, W, B, expected=CALIBRATION @ W * 0.05 + noise))
    moved = UNSEEN @ real_weights(layer, layer.target - layer.weights)[0]
    # Least squares would move the result by deviation**2 * inputs / rows.
    assert moved.var(axis=0).mean() < 0.5 * deviation**2 * 12 / rows


def test_too_few_rows_leave_the_weights_alone() -> None:
    layer = layer_of(CALIBRATION[:20], W, B, expected=np.zeros((20, 7)))
    assert adapt_weights(layer) is layer


def test_one_scale_for_the_tensor_stays_one() -> None:
    layer = replace(layer_of(CALIBRATION, W, B), per_channel=False)
    actual = search_scales(round_weights(adapt_weights(layer)))
    np.testing.assert_array_equal(actual.steps, layer.steps)


def test_integer_moments_do_not_depend_on_order_or_batches() -> None:
    x = correlated_inputs(300, 9)[None].astype(np.float32)
    y = np.rint(x[..., :4])
    whole, parts = Moments.zeros((1, 9, 4)), Moments.zeros((1, 9, 4))
    whole.add(x, y)
    for part in reversed(np.array_split(np.arange(300), 7)):
        parts.add(x[:, part], y[:, part])
    assert whole.count == parts.count
    for one, other in ((whole.gram, parts.gram), (whole.x_sum, parts.x_sum)):
        np.testing.assert_array_equal(one, other)


@given(
    rows=st.integers(0, 700),
    groups=st.integers(1, 3),
    largest=st.sampled_from([1, 255, 4000, 65535]),
    seed=st.integers(0, 99),
)
def test_slices_cover_all_rows_and_float32_adds_their_products_exactly(
    rows: int, groups: int, largest: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-largest, largest + 1, (groups, rows, 3)).astype(np.float32)
    slices = exact_slices(x)
    if not slices:
        assert 16 * largest**2 > 2**24
        return
    covered = sorted(row for part in slices for row in range(part.start, part.stop))
    assert covered == list(range(rows))
    for part in slices:
        exact = x[:, part].astype(np.float64)
        products = x[:, part].transpose(0, 2, 1) @ x[:, part]
        np.testing.assert_array_equal(products, exact.transpose(0, 2, 1) @ exact)


def test_a_channel_far_below_the_noise_is_left_alone() -> None:
    """Steps of 1e-22 cannot make up for errors of 1e4; float32 has no room for their squares."""
    w, b = W[:, :2] * [1e-20, 1e3], np.zeros(2)
    expected = CALIBRATION @ w + 1e4 * RNG.normal(size=(400, 2))
    layer = layer_of(CALIBRATION, w, b, expected=expected)
    for technique in (adapt_weights, round_weights, search_scales):
        layer = technique(layer)
    assert np.isfinite(layer.integers).all()


def test_moments_of_int16_codes_that_hardly_vary_are_exact() -> None:
    codes = np.float32(30_000) + RNG.integers(-2, 3, (40, 4)).astype(np.float32)
    moments = Moments.zeros((1, 4, 1))
    moments.add(codes[None], np.zeros((1, 40, 1), np.float32))
    exact = codes.astype(np.float64)
    np.testing.assert_array_equal(moments.gram[0], exact.T @ exact)
