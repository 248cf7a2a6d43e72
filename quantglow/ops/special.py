"""Functions that NumPy lacks, from SciPy.

SciPy is imported on first use: a process that only runs compiled code does not pay its 25 MB.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

BEYOND = 100.0
"""Numbers from here on have gates of 0 and 1."""


@cache
def _scipy() -> Any:
    from scipy import special

    return special


def erf(x: Any) -> Any:
    """``2 / sqrt(pi) * integral of exp(-t²) from 0 to x``"""
    return _scipy().erf(x)


def expit(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without overflow."""
    return _scipy().expit(x)


def ndtr(x: Any) -> Any:
    """``(1 + erf(x / sqrt(2))) / 2``, without cancellation below 0."""
    return _scipy().ndtr(x)


def tanh_gate(x: Any) -> Any:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2``, without cancellation below 0."""
    wide = np.clip(x, -BEYOND, BEYOND, dtype=np.float64)
    t = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    return np.asarray(expit(2 * t), np.result_type(x))
