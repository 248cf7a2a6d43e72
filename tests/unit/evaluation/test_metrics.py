"""Metrics have their closed-form values, and add up over samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.evaluation.metrics import ErrorSums, class_like, cosine, sqnr_db, top1_agreement
from quantglow.ir.types import f32
from quantglow.quantization.search.fake_quantization import energy, output_error, power

ARRAYS = hnp.arrays(np.float32, 12, elements=st.floats(-100, 100, width=32))


def test_a_tenth_of_error_is_20_db() -> None:
    assert sqnr_db(np.ones(4), np.full(4, 1.1)) == pytest.approx(20, abs=1e-3)


@given(ARRAYS)
def test_equal_arrays_have_infinite_sqnr(x: np.ndarray) -> None:
    assert sqnr_db(x, x) == math.inf


def test_noise_without_signal_is_minus_infinity() -> None:
    assert sqnr_db(np.zeros(3), np.ones(3)) == -math.inf


@given(ARRAYS, st.floats(0.5, 8))
def test_cosine_does_not_see_the_length(x: np.ndarray, factor: float) -> None:
    assert cosine(x, x * np.float64(factor)) == pytest.approx(1.0)


def test_cosine_of_orthogonal_arrays_is_0() -> None:
    assert cosine(np.array([1.0, 0]), np.array([0, 2.0])) == 0


@given(ARRAYS, ARRAYS, st.integers(0, 12))
def test_sums_over_parts_are_sums_over_the_whole(a: np.ndarray, b: np.ndarray, cut: int) -> None:
    parts = ErrorSums.of(a[:cut], b[:cut]) + ErrorSums.of(a[cut:], b[cut:])
    whole = ErrorSums.of(a, b)
    assert (parts.max_error, parts.noise) == (whole.max_error, pytest.approx(whole.noise))


def test_top1_agreement_counts_rows() -> None:
    a, b = np.array([[1, 2], [4, 3]]), np.array([[0, 9], [1, 2]])
    assert top1_agreement(a, b) == 0.5


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 10), True), ((4, 1, 1, 3), True), ((1, 4, 6), False), ((10,), False), ((5, 1), False)],
)
def test_class_like_shapes(shape: tuple[int, ...], expected: bool) -> None:
    assert class_like(f32(*shape)) is expected


INFINITE = np.array([1.0, -np.inf, 2.0, np.inf, np.nan])


def test_equal_infinities_are_no_error() -> None:
    actual = ErrorSums.of(INFINITE, np.array([1.0, -np.inf, 1.8, np.inf, np.nan]))
    remaining = ErrorSums.of(np.array([1.0, 2.0]), np.array([1.0, 1.8]))
    assert (actual.sqnr_db, actual.max_error) == (remaining.sqnr_db, remaining.max_error)
    assert actual.cosine == pytest.approx(remaining.cosine)


@pytest.mark.parametrize("other", [0.0, np.inf, np.nan])
def test_another_number_for_an_infinity_is_an_infinite_error(other: float) -> None:
    actual = ErrorSums.of(np.array([1.0, -np.inf]), np.array([1.0, other]))
    assert (actual.sqnr_db, actual.max_error) == (-np.inf, np.inf)


@pytest.mark.parametrize("any_shift", [False, True])
def test_the_noise_of_judged_values_leaves_equal_infinities_out(any_shift: bool) -> None:
    exact = np.array([[1.0, -np.inf, 3.0]])
    error = output_error(exact + np.array([0.5, 0.0, 0.0]), exact)
    assert energy(error, any_shift) == (0.125 if any_shift else 0.25)
    assert power(exact, any_shift) == (2.0 if any_shift else 10.0)
    assert energy(output_error(np.array([[1.0, 0.0, 3.0]]), exact), any_shift) == np.inf


def test_rows_with_equal_nan_agree_by_their_numbers() -> None:
    nan = np.nan
    a = np.array([[nan, 2, 1], [nan, 2, 1], [nan, 2, 1], [nan, nan, nan]])
    b = np.array([[nan, 2, 1], [nan, 1, 2], [2, nan, 1], [nan, nan, nan]])
    assert top1_agreement(a, b) == 0.5
