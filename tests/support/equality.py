"""Comparison of output lists: integers exactly, floats to the rounding of reordered sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.support.arrays import Array


def largest_finite(array: Array) -> float:
    """Largest finite magnitude of ``array``, at least 1: the scale of an absolute tolerance."""
    return float(np.abs(array).max(initial=1.0, where=np.isfinite(array)))


def assert_equal_values(
    actual: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Check equal types and shapes, integers bit for bit, and floats to a tolerance.

    The tolerance is ``rtol`` of the value or ``atol`` of the largest finite one.  Infinities and
    NaN are in the same places.
    """
    for a, b in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype == np.float32:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * largest_finite(b))
        else:
            np.testing.assert_array_equal(a, b)
