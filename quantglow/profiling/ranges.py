"""The range of reals that 256 integers cover, chosen from a histogram.

Zero is always exact, so zeros never count as an error, and every range contains 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.profiling.histogram import Histogram

LEVELS = 256


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


def squared_error(histogram: Histogram, seen: Range) -> float:
    """The expected mean of ``(rounded x - x)**2`` over all values, clipped to ``seen``.

    It is ``step**2 / 12`` for a value inside, the squared distance for one outside, and 0 for
    zeros.
    """
    start, exponent, counts = _without_zeros(histogram, mirrored=False)
    x = np.ldexp(np.arange(start, start + len(counts)) + 0.5, exponent)
    below, below_count = _tail_error(x, counts, np.array([seen.low]))
    above, above_count = _tail_error(-x[::-1], counts[::-1], np.array([-seen.high]))
    inside = counts.sum() - below_count - above_count
    errors = inside * (seen.width / (LEVELS - 1)) ** 2 / 12 + below + above
    return float(errors[0]) / max(histogram.count, 1)


def minmax(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range of all values."""
    return Range(histogram.minimum, histogram.maximum)


def by_percentile(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range without ``(100 - percentile) / 2`` percent of the values on each side."""
    allowed = histogram.count * (100 - percentile) / 200
    edges, sums = histogram.edges, np.cumsum(histogram.counts)
    first = int(np.searchsorted(sums, allowed, side="right"))
    last = int(np.searchsorted(sums, histogram.count - allowed, side="left"))
    return Range(float(edges[min(first, len(edges) - 2)]), float(edges[last + 1]))


def by_entropy(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
    """The range whose 256-level version diverges least from the distribution (Kullback-Leibler; S.
    Migacz, 8-bit inference with TensorRT, 2017).
    """
    start, exponent, counts = _without_zeros(histogram, mirrored)
    windows = list(_windows(counts, -start, mirrored))
    divergences = [_divergence(counts, first, last) for first, last in windows]
    first, last = windows[int(np.argmin(divergences))]
    low, high = np.ldexp(np.array([start + first, start + last], np.float64), exponent)
    return Range(float(low), float(high))


def by_mse(histogram: Histogram, percentile: float, mirrored: bool) -> Range:
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
    "percentile": by_percentile,
    "entropy": by_entropy,
    "mse": by_mse,
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
    total, kept = counts.sum(), inside.sum()
    if not kept:
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
    q = np.maximum(spread / kept, 0.5 / total)
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
