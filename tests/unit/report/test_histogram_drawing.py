"""Histograms as data: few bars that hold every value."""

from __future__ import annotations

import numpy as np
import pytest

import quantglow as qg
from quantglow.profiling import Histogram
from quantglow.report.drawing import BARS, histogram_bars
from tests.support.frames import unpacked
from tests.support.small_network import small_model, small_samples


@pytest.mark.parametrize("count", [1, 2, 100, 10_000])
def test_bars_hold_every_value(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    actual = histogram_bars(Histogram.of(values))
    assert sum(actual["counts"]) == count
    assert len(actual["counts"]) <= BARS
    assert actual["low"] <= values.min() <= values.max() <= actual["high"]


def test_a_bar_has_the_values_between_its_borders() -> None:
    values = np.linspace(-3, 5, 4000, dtype=np.float32)
    actual = histogram_bars(Histogram.of(values))
    borders = np.linspace(actual["low"], actual["high"], len(actual["counts"]) + 1)
    np.testing.assert_array_equal(actual["counts"], np.histogram(values, borders)[0])


def test_the_stored_range_is_drawn() -> None:
    assert histogram_bars(Histogram.of(np.float32([1.0])), (-1.0, 2.0))["range"] == [-1.0, 2.0]


def test_a_profile_draws_itself_in_a_notebook() -> None:
    text = qg.profile(small_model(), small_samples(), progress=False)._repr_html_()
    assert "Profile of 6 tensors over 4 sample(s)" in unpacked(text)
