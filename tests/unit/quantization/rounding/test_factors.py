"""Factors of covariances."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.quantization.rounding.moments import inverse_of_lower, lower_factors, solutions


def covariances(groups: int, dtype: type, size: int = 12) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((groups, 3 * size + 4, size))
    return (rows.transpose(0, 2, 1) @ rows).astype(dtype)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factor_times_its_transpose_is_the_covariance(groups: int, dtype: type) -> None:
    moments = covariances(groups, dtype)
    lower = lower_factors(moments)
    assert lower.dtype == dtype
    assert np.array_equal(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.transpose(0, 2, 1), moments, rtol=0, atol=1e-4)


def test_a_covariance_that_float32_makes_indefinite_is_factored() -> None:
    row = np.random.default_rng(0).standard_normal((1, 1, 30))
    inputs = row.transpose(0, 2, 1) @ row + 1e-7 * np.eye(30)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(inputs.astype(np.float32))
    assert np.isfinite(lower_factors(inputs)).all()


@pytest.mark.parametrize("groups", [1, 3])
def test_solutions_solve(groups: int) -> None:
    moments = covariances(groups, np.float64)
    right = np.random.default_rng(1).standard_normal((groups, 12, 5))
    np.testing.assert_allclose(moments @ solutions(moments, right), right, atol=1e-9)


@pytest.mark.parametrize("size", [1, 16, 17, 63, 64, 65, 150])
def test_factors_of_every_size_are_made_and_used_in_blocks(size: int) -> None:
    moments = covariances(1, np.float64, size)
    right = np.random.default_rng(1).standard_normal((1, size, 3))
    lower = lower_factors(moments)
    np.testing.assert_allclose(lower, np.linalg.cholesky(moments), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments @ solutions(moments, right), right, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1, 16, 17, 40, 64])
def test_a_lower_triangle_times_its_inverse_is_one(size: int) -> None:
    lower = np.linalg.cholesky(covariances(1, np.float64, size)[0])
    np.testing.assert_allclose(lower @ inverse_of_lower(lower), np.eye(size), atol=1e-10)


def test_a_covariance_that_is_indefinite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        lower_factors(-np.eye(70)[None])
