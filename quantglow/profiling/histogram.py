"""Streaming histograms, pure functions of the multiset of values, and ranges chosen from them.

Bins are ``2**exponent`` wide and aligned to multiples of that width: bin i holds the x with
``floor(x / 2**exponent) == i``.  The exponent is the smallest at which the values span at most
``BINS`` bins, so it follows from the smallest and the largest value alone; and halving a bin
index is exactly the index at the doubled width.  Hence ``of(a + b) == of(a).merge(of(b))`` bit
for bit, in any order and any split.

``choose_range`` gives the reals that 256 integers cover.  Zero is always exact, so zeros never
count as an error, and every range contains 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.ir.ops.native import native_ops
from quantglow.support.arrays import Array

BINS = 2048
FINEST = -149
"""Smallest exponent: float32 numbers are at least ``2**-149`` apart."""
MANTISSA = 24
FLOAT32_SCALES = -127
"""Smallest exponent at which float32 holds ``2**-exponent``."""
CHUNK = 1 << 16
"""Number of values counted at once, so that the temporaries stay in the cache."""

LEVELS = 256


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
        """float64 [bins]: bin centers, moved inside the extremes."""
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
        start, stop = _bin_index(low, exponent), _bin_index(high, exponent) + 1
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
    while _bin_index(high, exponent) - _bin_index(low, exponent) >= BINS:
        exponent += 1
    return exponent


def _bin_index(x: float, exponent: int) -> int:
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
    start, stop = _bin_index(low, exponent), _bin_index(high, exponent) + 1
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


@dataclass(frozen=True)
class Range:
    """The reals from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low

    def union(self, other: Range) -> Range:
        """The smallest range that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def within(self, low: float, high: float) -> Range:
        """The part inside ``[low, high]``."""
        return Range(min(max(self.low, low), high), max(min(self.high, high), low))


def choose_range(
    histogram: Histogram,
    method: str = "minmax",
    percentile: float = 99.999,
    symmetric: bool = False,
) -> Range:
    """The range to quantize, containing 0.

    A ``symmetric`` one will be widened to ``[-m, m]`` if it has negative values.  Raises
    ``ValueError`` for a histogram without values.
    """
    if not histogram.count:
        raise ValueError("an empty histogram has no range")
    mirrored = symmetric and histogram.minimum < 0
    chosen = RANGE_METHODS[method](histogram, percentile, mirrored)
    # Bin borders may lie outside the values; no choice is better than the exact extremes.
    low, high = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    return Range(max(min(chosen.low, 0.0), low), min(max(chosen.high, 0.0), high))


def squared_error(histogram: Histogram, clipping: Range) -> float:
    """The expected mean of ``(rounded x - x)**2`` over all values, clipped to ``clipping``.

    It is ``step**2 / 12`` for a value inside, the squared distance for one outside, and 0 for
    zeros.
    """
    start, exponent, counts = _without_zeros(histogram, mirrored=False)
    x = np.ldexp(np.arange(start, start + len(counts)) + 0.5, exponent)
    below, below_count = _tail_error(x, counts, np.array([clipping.low]))
    above, above_count = _tail_error(-x[::-1], counts[::-1], np.array([-clipping.high]))
    inside = counts.sum() - below_count - above_count
    errors = inside * (clipping.width / (LEVELS - 1)) ** 2 / 12 + below + above
    return float(errors[0]) / max(histogram.count, 1)


def minmax(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range of all values."""
    return Range(histogram.minimum, histogram.maximum)


def _by_percentile(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range without ``(100 - percentile) / 2`` percent of the values on each side."""
    allowed = histogram.count * (100 - percentile) / 200
    edges, sums = histogram.edges, np.cumsum(histogram.counts)
    first = int(np.searchsorted(sums, allowed, side="right"))
    last = int(np.searchsorted(sums, histogram.count - allowed, side="left"))
    return Range(float(edges[min(first, len(edges) - 2)]), float(edges[last + 1]))


def _by_entropy(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range whose 256-level version diverges least from the distribution (Kullback-Leibler; S.
    Migacz, 8-bit inference with TensorRT, 2017).
    """
    start, exponent, counts = _without_zeros(histogram, mirrored)
    windows = list(_windows(counts, -start, mirrored))
    divergences = [_divergence(counts, first, last) for first, last in windows]
    first, last = windows[int(np.argmin(divergences))]
    low, high = np.ldexp(np.array([start + first, start + last], np.float64), exponent)
    return Range(float(low), float(high))


def _by_mse(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range with the smallest expected squared error: ``step**2 / 12`` for a value inside, the
    squared distance for one outside.
    """
    start, exponent, counts = _without_zeros(histogram, mirrored=False)
    x = np.ldexp(np.arange(start, start + len(counts)) + 0.5, exponent)
    shrink = np.linspace(1.0, 1 / 64, 127)
    low, high = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    if mirrored:
        lows = -max(-low, high) * shrink
        highs, steps = -lows, -2 * lows / (LEVELS - 2)
    else:
        lows, highs = (a.reshape(-1) for a in np.meshgrid(low * shrink, high * shrink))
        steps = (highs - lows) / (LEVELS - 1)
    below, below_count = _tail_error(x, counts, lows)
    above, above_count = _tail_error(-x[::-1], counts[::-1], -highs)
    inside = counts.sum() - below_count - above_count
    best = int(np.argmin(inside * steps**2 / 12 + below + above))
    return Range(float(lows[best]), float(highs[best]))


RANGE_METHODS: dict[str, Callable[[Histogram, float, bool], Range]] = {
    "auto": minmax,
    "minmax": minmax,
    "percentile": _by_percentile,
    "entropy": _by_entropy,
    "mse": _by_mse,
}


def _without_zeros(histogram: Histogram, mirrored: bool) -> tuple[int, int, Array]:
    """First bin, exponent and counts over bins that contain 0; symmetric bins if mirrored."""
    wide = histogram.containing_zero()
    start, counts = wide.start, wide.counts.astype(np.float64)
    counts[-start] -= histogram.zeros
    if mirrored:
        half = max(-start, start + len(counts))
        counts = np.pad(counts, (half + start, half - start - len(counts)))
        start = -half
    return start, wide.exponent, counts


def _windows(counts: Array, zero: int, mirrored: bool) -> Iterator[tuple[int, int]]:
    """Ever smaller windows that contain bin ``zero``; the end with fewer values is cut first."""
    step = max(1, len(counts) // 128)
    first, last = 0, len(counts)
    yield first, last
    while last - first > LEVELS:
        left, right = counts[first : first + step].sum(), counts[last - step : last].sum()
        may_left, may_right = first + step <= zero, last - step > zero
        if not (may_left or may_right):
            return
        if mirrored or (may_left and (left <= right or not may_right)):
            first += step
        if mirrored or not (may_left and (left <= right or not may_right)):
            last -= step
        yield first, last


def _divergence(counts: Array, first: int, last: int) -> float:
    """KL divergence of the clipped distribution from its 256-level version, in nats."""
    inside = counts[first:last]
    total, inside_total = counts.sum(), inside.sum()
    if not inside_total:
        return 0.0 if not total else np.inf
    clipped = inside.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last:].sum()
    level = np.arange(len(inside)) * LEVELS // len(inside)
    mass = np.bincount(level, inside)
    occupied = np.bincount(level, inside > 0)
    # A level's mass goes evenly to its occupied bins.  Outliers may sit on an empty bin: half a
    # value there keeps the divergence finite.
    spread = np.where(inside > 0, (mass / np.maximum(occupied, 1))[level], 0.0)
    q = np.maximum(spread / inside_total, 0.5 / total)
    p = clipped / total
    some = p > 0
    # Finite counts alone give half a nat for each bin that shares a level (Miller, 1955).  Without
    # the correction the smallest windows win, whose levels are single bins.
    noise = (np.count_nonzero(inside) - np.count_nonzero(mass)) / (2 * total)
    return float(np.sum(p[some] * np.log(p[some] / q[some])) - noise)


def _tail_error(x: Array, counts: Array, thresholds: Array) -> tuple[Array, Array]:
    """``sum(counts * (t - x)**2 for x < t)`` and ``sum(counts for x < t)`` for ascending x."""
    sums = [np.concatenate([[0.0], np.cumsum(counts * x**power)]) for power in (0, 1, 2)]
    below = np.searchsorted(x, thresholds)
    s0, s1, s2 = (s[below] for s in sums)
    return np.maximum(s2 - 2 * thresholds * s1 + thresholds**2 * s0, 0.0), s0
