"""Functions that NumPy lacks, from SciPy.

SciPy is imported on first use: a process that only runs compiled code does not pay its 25 MB.
"""

from __future__ import annotations

from functools import cache
from typing import Any


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
