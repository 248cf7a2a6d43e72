"""Streaming histograms that are a pure function of the multiset of values.

Bins are ``2**exponent`` wide and aligned to multiples of that width: bin i holds the x with
``floor(x / 2**exponent) == i``.  The exponent is the smallest at which the values span at most
``BINS`` bins, so it follows from the smallest and the largest value alone; and halving a bin
index is exactly the index at the doubled width.  Hence ``of(a + b) == of(a).merge(of(b))`` bit
for bit, in any order and any split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.foreign_types import Array
from quantglow.ops.native import native_ops

BINS = 2048
FINEST = -149
"""Smallest exponent: float32 numbers are at least ``2**-149`` apart."""
MANTISSA = 24
FLOAT32_SCALES = -127
"""Smallest exponent at which float32 holds ``2**-exponent``."""
CHUNK = 1 << 16
"""Number of values counted at once, so that the temporaries stay in the cache."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the finite values, their exact extremes, and counts of zeros, NaN and Inf.

    ``counts[i]`` counts the values in bin ``start + i``.  Without values ``minimum`` is +inf.
    ``infinities`` counts both signs, ``negative_infinities`` those below 0.
    """

    exponent: int = FINEST
    start: int = 0
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    minimum: float = math.inf
    maximum: float = -math.inf
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    negative_infinities: int = 0

    @staticmethod
    def of(values: Array) -> Histogram:
        """The histogram of a float32 array."""
        flat = np.asarray(values, np.float32).reshape(-1)
        if not flat.size:
            return Histogram()
        low, high = _extremes(flat)
        if math.isfinite(low) and math.isfinite(high):
            return _of_finite(flat, low, high)
        finite = flat[np.isfinite(flat)]
        nans, below = int(np.isnan(flat).sum()), int(np.count_nonzero(flat == -math.inf))
        return replace(
            Histogram.of(finite),
            nans=nans,
            infinities=flat.size - finite.size - nans,
            negative_infinities=below,
        )

    @property
    def count(self) -> int:
        """Number of finite values."""
        return int(self.counts.sum())

    @property
    def specials(self) -> frozenset[float]:
        """The special numbers among the values: -inf, inf and ``math.nan``."""
        counts = {-math.inf: self.negative_infinities, math.nan: self.nans}
        counts[math.inf] = self.infinities - self.negative_infinities
        return frozenset(special for special, count in counts.items() if count)

    @property
    def edges(self) -> Array:
        """float64 [bins + 1]: the borders of the bins."""
        index = np.arange(self.start, self.start + len(self.counts) + 1, dtype=np.float64)
        return np.ldexp(index, self.exponent)

    @property
    def centres(self) -> Array:
        """float64 [bins]: bin centres, moved inside the extremes."""
        edges = self.edges
        return np.clip((edges[1:] + edges[:-1]) / 2, self.minimum, self.maximum)

    def merge(self, other: Histogram) -> Histogram:
        """The histogram of both multisets; exact, associative and commutative."""
        low, high = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        merged = Histogram() if low > high else self._covering(low, high, other)
        return Histogram(
            merged.exponent,
            merged.start,
            merged.counts,
            low,
            high,
            self.zeros + other.zeros,
            self.nans + other.nans,
            self.infinities + other.infinities,
            self.negative_infinities + other.negative_infinities,
        )

    def containing_zero(self) -> Histogram:
        """The same counts in bins that reach to 0, which every quantized range contains."""
        return self._covering(min(self.minimum, 0.0), max(self.maximum, 0.0))

    def _covering(self, low: float, high: float, *others: Histogram) -> Histogram:
        """Counts of all values in the canonical bins of ``[low, high]``."""
        exponent = bin_exponent(low, high)
        start, stop = bin_index(low, exponent), bin_index(high, exponent) + 1
        counts = np.zeros(stop - start, np.int64)
        for part in (self, *others):
            # Indices have at most 26 bits; shifts of 64 and more are undefined.
            shift = min(exponent - part.exponent, 62)
            if not shift:
                first = part.start - start
                counts[first : first + len(part.counts)] += part.counts
                continue
            index = np.arange(part.start, part.start + len(part.counts)) >> shift
            np.add.at(counts, index - start, part.counts)
        return Histogram(exponent, start, counts, self.minimum, self.maximum, self.zeros)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        numbers = (self.exponent, self.start, self.minimum, self.maximum, self.zeros, self.nans)
        return (*numbers, self.counts.tobytes(), self.infinities, self.negative_infinities)


def bin_exponent(low: float, high: float) -> int:
    """The smallest exponent at which ``[low, high]`` spans at most ``BINS`` bins.

    Bins narrower than the float32 spacing at the largest magnitude are useless, so this spacing is
    a lower bound.  Both bounds only grow with the range.
    """
    magnitude = math.frexp(max(abs(low), abs(high)))[1] - MANTISSA
    span = math.frexp(high - low)[1] - BINS.bit_length()
    exponent = max(magnitude if low or high else FINEST, span if high > low else FINEST, FINEST)
    while bin_index(high, exponent) - bin_index(low, exponent) >= BINS:
        exponent += 1
    return exponent


def bin_index(x: float, exponent: int) -> int:
    """``floor(x / 2**exponent)``, exact for float32 x."""
    return math.floor(math.ldexp(x, -exponent))


def _extremes(flat: Array) -> tuple[float, float]:
    """The smallest and the largest value; not finite where one is not."""
    native = native_ops()
    if native is not None:
        return native.extremes(np.ascontiguousarray(flat))
    return float(flat.min()), float(flat.max())


def _of_finite(flat: Array, low: float, high: float) -> Histogram:
    exponent = bin_exponent(low, high)
    start, stop = bin_index(low, exponent), bin_index(high, exponent) + 1
    counts, zeros = np.zeros(stop - start, np.int64), 0
    # Indices are below 2**24, and float32 scales up exactly; scaling down needs float64.
    kind = np.float32 if FLOAT32_SCALES <= exponent <= 0 else np.float64
    per_bin = kind(2.0**-exponent)
    native = native_ops()
    if native is not None and kind is np.float32:
        zeros = native.count(np.ascontiguousarray(flat), float(per_bin), start, counts)
        return Histogram(exponent, start, counts, low + 0.0, high + 0.0, zeros)
    for begin in range(0, flat.size, CHUNK):
        part = flat[begin : begin + CHUNK]
        index = np.floor(part * per_bin)
        index -= kind(start)
        counts += np.bincount(index.astype(np.int32), minlength=len(counts))
        zeros += int(np.count_nonzero(part == 0))
    # + 0.0: the sign of zero would depend on the order of the values.
    return Histogram(exponent, start, counts, low + 0.0, high + 0.0, zeros)
