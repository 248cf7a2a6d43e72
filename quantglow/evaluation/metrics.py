"""Metrics of one result against another, and of a tensor's use of its integers.

Sums run in float64.  ``CodeUse`` has the codes that a tensor takes, its limits, and its range
against its histogram.

>>> import numpy as np
>>> sqnr_db(np.ones(4), np.full(4, 1.1))
20.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.types import TensorType
from quantglow.profiling import Histogram, choose_range
from quantglow.support.arrays import Array

BLOCK = 8_192
"""Number of elements converted to float64 at a time: they stay in the cache, and BLAS uses one
thread."""

Range = tuple[float, float]
"""The reals of the lowest and of the highest code."""

LEVELS = 256
"""Number of codes of int8: a value within a step of the range is rounded, not clipped."""

CORE_PERCENT = 99.9
GROUPS = 16


@dataclass(frozen=True)
class ErrorSums:
    """Energies of two signals, of their difference and of their product; they add up.

    An infinity or NaN that both have in one place does not count; any other is an infinite error.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    max_error: float = 0.0

    @staticmethod
    def of(reference: Array, value: Array) -> ErrorSums:
        """Sums over two arrays of one shape."""
        a, b = np.ravel(reference), np.ravel(value)
        starts = range(0, a.size, BLOCK)
        return sum(
            (ErrorSums._block(a[i : i + BLOCK], b[i : i + BLOCK]) for i in starts), ErrorSums()
        )

    @staticmethod
    def _block(reference: Array, value: Array) -> ErrorSums:
        a, b = reference.astype(np.float64), value.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            return ErrorSums._block_with_infinities(a, b, finite)
        error = a - b
        largest = float(np.abs(error).max())
        return ErrorSums(float(a @ a), float(error @ error), float(b @ b), float(a @ b), largest)

    @staticmethod
    def _block_with_infinities(a: Array, b: Array, finite: Array) -> ErrorSums:
        left_out = ~finite & ((a == b) | (np.isnan(a) & np.isnan(b)))
        block = ErrorSums._block(np.where(finite, a, 0.0), np.where(finite, b, 0.0))
        if (finite | left_out).all():
            return block
        return block + ErrorSums(noise=math.inf, max_error=math.inf)

    def __add__(self, more: ErrorSums) -> ErrorSums:
        return ErrorSums(
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
    return ErrorSums.of(reference, value).sqnr_db


def cosine(reference: Array, value: Array) -> float:
    """Cosine similarity."""
    return ErrorSums.of(reference, value).cosine


def class_like(kind: TensorType) -> bool:
    """Whether the last axis may hold one score for each class: [N, C], or with sizes 1 between."""
    sizes = kind.fixed_shape
    return len(sizes) >= 2 and math.prod(sizes) == sizes[0] * sizes[-1] and sizes[-1] > 1


def top1_agreement(reference: Array, value: Array) -> float:
    """Share of rows whose largest number along the last axis is in the same place, with the same
    NaN.
    """
    absent, missing = np.isnan(reference), np.isnan(value)
    best = np.where(absent, -np.inf, reference).argmax(-1)
    top = np.where(missing, -np.inf, value).argmax(-1)
    return float(np.mean((best == top) & (absent == missing).all(-1)))


@dataclass(frozen=True)
class CodeUse:
    """Use of one tensor's integers.

    low, high   reals of the lowest and the highest code
    levels      number of codes: 256 for int8
    used        number of codes that occurred
    saturation  share of the values on the lowest or highest code.  A limit that stands for 0 does
                not count, because Relu cuts there, not the quantizer
    seen        share of the range between the smallest and the largest profiled value, and 0
    core        share of the range that ``CORE_PERCENT`` of the profiled values and 0 take
    shares      shares of the values in each of ``GROUPS`` equal groups of codes
    """

    low: float
    high: float
    levels: int
    used: int
    saturation: float
    shares: tuple[float, ...] = ()
    seen: float | None = None
    core: float | None = None


@dataclass
class CodeCounter:
    """A listener of the interpreter that counts the codes of activations."""

    counts: dict[str, Array] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def __call__(self, node: Node, value: Array) -> None:
        kind = node.type
        small = kind.quant is not None and kind.quant.axis is None and kind.dtype.nbytes <= 2
        if isinstance(node, Constant) or not small or not value.size:
            return
        low, high = kind.dtype.limits
        counts = np.bincount(value.ravel().astype(np.intp) - low, minlength=high - low + 1)
        self.counts[node.name] = self.counts.get(node.name, 0) + counts
        self.types[node.name] = kind

    def uses(self, histograms: Mapping[str, Histogram]) -> dict[str, CodeUse]:
        """Use of the counted types by name, beside the histograms of a profile if it has them."""
        return {
            name: code_use(self.types[name], counts, histograms.get(name))
            for name, counts in self.counts.items()
        }


def code_use(kind: TensorType, counts: Array, histogram: Histogram | None = None) -> CodeUse:
    """Use of a quantized type whose codes occurred ``counts`` times, lowest code first."""
    limits, params = kind.dtype.limits, kind.params
    total = int(counts.sum())
    ends = zip(limits, (counts[0], counts[-1]), strict=True)
    saturated = sum(int(count) for code, count in ends if code != params.zero_point)
    low, high = (float(params.scale) * (code - params.zero_point) for code in limits)
    groups = np.add.reduceat(counts, np.arange(GROUPS) * len(counts) // GROUPS)
    return CodeUse(
        low,
        high,
        levels=len(counts),
        used=int(np.count_nonzero(counts)),
        saturation=saturated / total,
        shares=tuple(round(float(share), 4) for share in groups / total),
        seen=_range_share(low, high, histogram, "minmax"),
        core=_range_share(low, high, histogram, "percentile"),
    )


def _range_share(low: float, high: float, histogram: Histogram | None, method: str) -> float | None:
    """Share of ``[low, high]`` that a range chosen from the histogram takes."""
    if histogram is None or not histogram.count:
        return None
    return choose_range(histogram, method, CORE_PERCENT).within(low, high).width / (high - low)


def quantized_ranges(graph: Graph) -> dict[str, Range]:
    """The range of each quantized value; that of a conversion counts for the value in its name."""
    ranges: dict[str, Range] = {}
    for node in graph.nodes:
        if (stored := _stored_range(node.type)) is not None:
            ranges[node.name] = stored
            ranges.setdefault(node.name.rpartition(":")[0], stored)
    return ranges


def _stored_range(kind: TensorType) -> Range | None:
    """The reals of the lowest and the highest code; None for float, and for a range per channel."""
    if kind.quant is None or kind.quant.axis is not None:
        return None
    params = kind.params
    low, high = (float(params.scale) * (code - params.zero_point) for code in kind.dtype.limits)
    return low, high


def clipped_share(histogram: Histogram, stored: Range) -> float:
    """The share of the profiled values that a range does not hold, but one step beyond it."""
    low, high = stored
    step = (high - low) / LEVELS
    centres, counts = histogram.centres, histogram.counts
    outside = (centres < low - step) | (centres > high + step)
    return float(counts[outside].sum() / counts.sum())
