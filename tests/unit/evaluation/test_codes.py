"""The use of a tensor's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.evaluation.metrics import CodeUse, code_use
from quantglow.ir.types import DType, QuantParams, TensorType
from quantglow.profiling import Histogram
from tests.support.effort import moderate


def use(codes: list[int], zero_point: int = 0, histogram: Histogram | None = None) -> CodeUse:
    kind = TensorType(DType.I8, (len(codes),), QuantParams.per_tensor(0.5, zero_point))
    return code_use(kind, np.bincount(np.array(codes) + 128, minlength=256), histogram)


def test_both_limits_are_saturation() -> None:
    assert use([-128, 127, 0, 1]).saturation == 0.5


def test_a_limit_that_stands_for_zero_is_no_saturation() -> None:
    assert use([-128, -128, 127, 1], zero_point=-128).saturation == 0.25


def test_used_codes_are_counted_once() -> None:
    assert use([3, 3, 3, -7]).used == 2


def test_range_is_that_of_the_parameters() -> None:
    actual = use([0], zero_point=-28)
    assert (actual.low, actual.high) == (-50.0, 77.5)


def test_range_seen_is_the_share_the_histogram_needs() -> None:
    actual = use([0], -128, Histogram.of(np.float32([0, 51.0])))
    assert actual.seen == pytest.approx(51 / 127.5)


def test_outliers_make_the_core_small() -> None:
    values = np.append(np.linspace(0, 1, 10_000), 127.5).astype(np.float32)
    actual = use([0], -128, Histogram.of(values))
    assert actual.seen == 1.0
    assert actual.core < 0.02


@moderate
@given(st.lists(st.integers(-128, 127), min_size=1), st.integers(-128, 127))
def test_shares_are_of_all_values(codes: list[int], zero_point: int) -> None:
    actual = use(codes, zero_point)
    assert sum(actual.shares) == pytest.approx(1, abs=1e-3)
    assert 0 <= actual.saturation <= 1
