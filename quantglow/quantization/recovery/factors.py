"""Cholesky factors of covariances, and what is solved with them.

LAPACK through SciPy takes half the time that it takes through NumPy, and float32 half of that.
Where rounding in float32 makes a matrix lose its positive definiteness, float64 does it.

SciPy is imported by who factors first: who quantizes without samples does not wait for it.  Its
BLAS gets one thread: it is another one than NumPy's, whose threads go on spinning for a while after
each product, and on a processor with few cores the two wait for each other (on two cores, the
recovery of ResNet-50 took 7 s instead of 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from quantglow.types import Array


@cache
def _linalg() -> Any:
    from scipy import linalg

    return linalg


@contextmanager
def _lapack() -> Iterator[Any]:
    """``scipy.linalg``, with one thread."""
    linalg = _linalg()
    with _scipy_threads().limit(limits=1):
        yield linalg


@cache
def _scipy_threads() -> Any:
    loaded: Any = ThreadpoolController()
    files = [library["filepath"] for library in loaded.info() if "scipy" in library["filepath"]]
    return loaded.select(filepath=files)


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
    with _lapack() as linalg:
        return np.asarray(linalg.cho_solve(factor, right[0], check_finite=False))[None]


def _lower(matrices: Array) -> Array:
    if len(matrices) > 1:
        return np.asarray(np.linalg.cholesky(matrices))
    # Symmetric, so that its transpose is the matrix in the order that LAPACK wants.
    with _lapack() as linalg:
        return np.asarray(linalg.cholesky(matrices[0].T, lower=True, check_finite=False))[None]
