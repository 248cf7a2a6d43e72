"""Cholesky factors of covariances, and what is solved with them.

LAPACK through SciPy takes half the time that it takes through NumPy, and float32 half of that.
Where rounding in float32 makes a matrix lose its positive definiteness, float64 does it.

SciPy is imported by who factors first: who quantizes without samples does not wait for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from quantglow.types import Array


@cache
def _linalg() -> Any:
    from scipy import linalg

    return linalg


def lower_factors(matrices: Array) -> Array:
    """L [G, K, K] with ``L L' = matrices``, lower triangular."""
    try:
        return _lower(matrices)
    except np.linalg.LinAlgError:
        return _lower(matrices.astype(np.float64)).astype(matrices.dtype)


def solutions(matrices: Array, right: Array) -> Array:
    """X [G, K, O] with ``matrices X = right``."""
    if len(matrices) > 1:
        # Groups are small: a call for each takes longer than what it computes.
        return np.asarray(np.linalg.solve(matrices, right))
    factor = (lower_factors(matrices)[0], True)
    return np.asarray(_linalg().cho_solve(factor, right[0], check_finite=False))[None]


def _lower(matrices: Array) -> Array:
    if len(matrices) > 1:
        return np.asarray(np.linalg.cholesky(matrices))
    # Symmetric, so that its transpose is the matrix in the order that LAPACK wants.
    return np.asarray(_linalg().cholesky(matrices[0].T, lower=True, check_finite=False))[None]
