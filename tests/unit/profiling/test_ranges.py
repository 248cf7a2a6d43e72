"""Range choice from histograms."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.profiling import Histogram, Range, choose_range
from quantglow.support.arrays import Array


def normal(count: int = 50_000) -> Array:
    return np.random.default_rng(0).normal(size=count).astype(np.float32)


def squared_error(x: Array, observed: Range, levels: int = 255) -> float:
    """Mean squared error of uniform quantization with 0 exact."""
    step = observed.width / levels
    q = np.clip(np.rint(x / step), np.ceil(observed.low / step), np.floor(observed.high / step))
    return float(np.mean((q * step - x) ** 2))


def test_minmax_is_exact() -> None:
    x = normal()
    assert choose_range(Histogram.of(x)) == Range(float(x.min()), float(x.max()))


def test_every_range_contains_zero() -> None:
    assert choose_range(Histogram.of(np.float32([3, 5]))) == Range(0.0, 5.0)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_percentile_cuts_half_of_the_rest_on_each_side(percentile: float) -> None:
    x = normal()
    h = Histogram.of(x)
    chosen = choose_range(h, "percentile", percentile)
    width, allowed = 2.0**h.exponent, len(x) * (100 - percentile) / 200
    for outside, next_bin in (
        (x < chosen.low, x < chosen.low + width),
        (x > chosen.high, x > chosen.high - width),
    ):
        assert outside.sum() <= allowed + 1 <= next_bin.sum() + 1


@pytest.mark.parametrize("method", ["entropy", "mse"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_lone_outlier_is_clipped(method: str, symmetric: bool) -> None:
    x = np.append(normal(), np.float32(30.0))
    chosen = choose_range(Histogram.of(x), method, symmetric=symmetric)
    assert chosen.high < 29


@pytest.mark.parametrize(
    "x", [normal(), np.maximum(normal(), 0), normal() ** 3], ids=["normal", "relu", "heavy"]
)
def test_mse_is_no_worse_than_any_other_method(x: Array) -> None:
    h = Histogram.of(x)
    ours = squared_error(x, choose_range(h, "mse"))
    others = [choose_range(h, m, 99.9) for m in ("minmax", "percentile", "entropy")]
    assert ours <= 1.02 * min(squared_error(x, other) for other in others)


@pytest.mark.parametrize("method", ["entropy", "mse"])
def test_a_uniform_tensor_is_not_clipped_much(method: str) -> None:
    x = np.random.default_rng(0).uniform(-1, 2, 100_000).astype(np.float32)
    chosen = choose_range(Histogram.of(x), method)
    assert chosen.low < -0.95
    assert chosen.high > 1.95


def test_many_exact_zeros_do_not_attract_the_range() -> None:
    x = normal(5_000)
    crowded = np.concatenate([x, np.zeros(1_000_000, np.float32)])
    for method in ("entropy", "mse"):
        assert choose_range(Histogram.of(crowded), method) == choose_range(Histogram.of(x), method)


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile", "mse"])
@pytest.mark.parametrize("value", [0.0, 5.0, -1e-30])
def test_a_constant_tensor_has_a_range(method: str, value: float) -> None:
    chosen = choose_range(Histogram.of(np.full(10, value, np.float32)), method)
    assert chosen == Range(min(np.float32(value), 0.0), max(np.float32(value), 0.0))


def test_an_empty_histogram_has_no_range() -> None:
    with pytest.raises(ValueError, match="no range"):
        choose_range(Histogram())
