"""How a tensor uses its integers: the codes it takes, its limits, its range against its histogram.

>>> bars((0.5, 0.0, 1.0))
'▄ █'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.profiling import Histogram, choose_range
from quantglow.types import TensorType

CORE_PERCENT = 99.9
GROUPS = 16
_BARS = " ▁▂▃▄▅▆▇█"


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
        found = np.bincount(value.ravel().astype(np.intp) - low, minlength=high - low + 1)
        self.counts[node.name] = self.counts.get(node.name, 0) + found
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
        seen=_taken(low, high, histogram, "minmax"),
        core=_taken(low, high, histogram, "percentile"),
    )


def _taken(low: float, high: float, histogram: Histogram | None, method: str) -> float | None:
    """Share of ``[low, high]`` that a range chosen from the histogram takes."""
    if histogram is None or not histogram.count:
        return None
    return choose_range(histogram, method, CORE_PERCENT).within(low, high).width / (high - low)


def bars(shares: Iterable[float]) -> str:
    """A histogram in one line of text; the highest bar is full, and no value is invisible."""
    heights = np.array(tuple(shares), np.float64)
    if not heights.size or not heights.max():
        return ""
    steps = np.ceil(heights / heights.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[step] for step in steps)
