"""Outputs compared bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from quantglow.support.arrays import Array


def first_difference(
    names: Iterable[str], expected: Sequence[Array], actual: Sequence[Array]
) -> str:
    """The first output that differs, in words, empty if none does.  NaN equals NaN."""
    for name, w, f in zip(names, expected, actual, strict=True):
        if (w.dtype, w.shape) != (f.dtype, f.shape):
            return f"{name}: {f.dtype}{f.shape} for {w.dtype}{w.shape}"
        if not np.array_equal(w, f, equal_nan=w.dtype == np.float32):
            return f"{name}: {np.mean(np.asarray(w != f)):.2%} of the values differ"
    return ""
