"""Factors of covariances."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from quantglow.quantization.recovery import factors
from quantglow.quantization.recovery.factors import lower_factors, solutions


def covariances(groups: int, dtype: type) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((groups, 40, 12))
    return (rows.transpose(0, 2, 1) @ rows).astype(dtype)


def scipy_threads() -> list[int]:
    return [b["num_threads"] for b in ThreadpoolController().info() if "scipy" in b["filepath"]]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factor_times_its_transpose_is_the_covariance(groups: int, dtype: type) -> None:
    given = covariances(groups, dtype)
    lower = lower_factors(given)
    assert lower.dtype == dtype
    assert np.array_equal(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.transpose(0, 2, 1), given, rtol=0, atol=1e-4)


def test_a_covariance_that_float32_makes_indefinite_is_factored() -> None:
    row = np.random.default_rng(0).standard_normal((1, 1, 30))
    given = row.transpose(0, 2, 1) @ row + 1e-7 * np.eye(30)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(given.astype(np.float32))
    assert np.isfinite(lower_factors(given)).all()


@pytest.mark.parametrize("groups", [1, 3])
def test_solutions_solve(groups: int) -> None:
    given = covariances(groups, np.float64)
    right = np.random.default_rng(1).standard_normal((groups, 12, 5))
    np.testing.assert_allclose(given @ solutions(given, right), right, atol=1e-9)


def test_scipy_gets_one_thread_while_it_factors() -> None:
    lower_factors(covariances(1, np.float32))  # imports it
    before = scipy_threads()
    with factors._lapack():
        inside = scipy_threads()
    assert inside == [1] * len(before)
    assert scipy_threads() == before
