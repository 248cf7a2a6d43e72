"""How far one result is from another.  Sums run in float64.

>>> import numpy as np
>>> sqnr_db(np.ones(4), np.full(4, 1.1))
20.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.types import TensorType

BLOCK = 8_192
"""Number of elements converted to float64 at a time: they stay in the cache, and BLAS uses one
thread."""


@dataclass(frozen=True)
class Sums:
    """Energies of two signals, of their difference and of their product; they add up.

    An infinity or NaN that both have in one place does not count; any other is an infinite error.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    max_error: float = 0.0

    @staticmethod
    def of(reference: Array, value: Array) -> Sums:
        """Sums over two arrays of one shape."""
        a, b = np.ravel(reference), np.ravel(value)
        starts = range(0, a.size, BLOCK)
        return sum((Sums._block(a[i : i + BLOCK], b[i : i + BLOCK]) for i in starts), Sums())

    @staticmethod
    def _block(reference: Array, value: Array) -> Sums:
        a, b = reference.astype(np.float64), value.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            return Sums._block_with_infinities(a, b, finite)
        error = a - b
        largest = float(np.abs(error).max())
        return Sums(float(a @ a), float(error @ error), float(b @ b), float(a @ b), largest)

    @staticmethod
    def _block_with_infinities(a: Array, b: Array, finite: Array) -> Sums:
        left_out = ~finite & ((a == b) | (np.isnan(a) & np.isnan(b)))
        rest = Sums._block(np.where(finite, a, 0.0), np.where(finite, b, 0.0))
        if (finite | left_out).all():
            return rest
        return rest + Sums(noise=math.inf, max_error=math.inf)

    def __add__(self, more: Sums) -> Sums:
        return Sums(
            self.signal + more.signal,
            self.noise + more.noise,
            self.other + more.other,
            self.product + more.product,
            max(self.max_error, more.max_error),
        )

    @property
    def sqnr_db(self) -> float:
        """``10 log10(signal / noise)``; infinite if both signals are equal."""
        if not self.noise or self.noise == math.inf:
            return -math.inf if self.noise else math.inf
        return round(10 * math.log10(self.signal / self.noise), 3) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both; 1 if both are zero."""
        if not self.signal or not self.other:
            return float(self.signal == self.other)
        return self.product / math.sqrt(self.signal * self.other)


def sqnr_db(reference: Array, value: Array) -> float:
    """Signal to quantization noise ratio in dB, ``10 log10(sum(r**2) / sum((r - v)**2))``."""
    return Sums.of(reference, value).sqnr_db


def cosine(reference: Array, value: Array) -> float:
    """Cosine similarity."""
    return Sums.of(reference, value).cosine


def class_like(kind: TensorType) -> bool:
    """Whether the last axis may hold one score for each class: [N, C], or with sizes 1 between."""
    return kind.rank >= 2 and kind.size == kind.shape[0] * kind.shape[-1] and kind.shape[-1] > 1


def top1_agreement(reference: Array, value: Array) -> float:
    """Share of rows whose largest number along the last axis is in the same place, with the same
    NaN.
    """
    absent, missing = np.isnan(reference), np.isnan(value)
    best = np.where(absent, -np.inf, reference).argmax(-1)
    found = np.where(missing, -np.inf, value).argmax(-1)
    return float(np.mean((best == found) & (absent == missing).all(-1)))
