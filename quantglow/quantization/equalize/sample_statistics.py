"""Statistics of a float graph's values that equalization needs, see ``FloatRuns.collect``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.lazy import cached_property
from quantglow.ops.native import native_ops
from quantglow.profiling import Histogram
from quantglow.quantization.equalize.channel_groups import bounded, high_of
from quantglow.quantization.equalize.equalization import Factors, divided
from quantglow.quantization.smoothing_scales import unscaled_name


@dataclass
class ChannelReach:
    """The reach of values: the largest magnitude in each channel (last axis).

    ``names``: values of ``graph``.  ``found`` leaves out integers, and values whose last axis does
    not have the same length in all samples.
    """

    graph: Graph
    names: Collection[str]
    found: dict[str, Array] = field(default_factory=dict)

    def part(self, name: str, value: Array) -> Array | None:
        """The reach of one value."""
        return _reach(value) if value.ndim and value.dtype.kind == "f" else None

    def add(self, parts: Mapping[str, Array | None]) -> None:
        """Count the values of one more sample."""
        for name, now in parts.items():
            if now is not None and self.graph.by_name(name).type.shape[-1:] == now.shape:
                known = self.found.get(name)
                self.found[name] = now if known is None else np.maximum(known, now)


def _reach(value: Array) -> Array:
    """float32 [C]; NaN where a value is NaN."""
    native = native_ops()
    if native is not None and value.dtype == np.float32 and value.size:
        return native.reaches(np.ascontiguousarray(value).reshape(-1, value.shape[-1]))
    axes = tuple(range(value.ndim - 1))
    highest, lowest = value.max(axis=axes, initial=0), value.min(axis=axes, initial=0)
    return np.asarray(np.maximum(highest, -lowest))


@dataclass
class RescaledValues:
    """``histograms`` of the values of ``graph`` that have factors, divided by their factors."""

    graph: Graph
    factors: Factors
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        some = (node for node in self.graph.nodes if node.name in self.factors)
        self.highs: Mapping[str, float] = {n.name: high_of(n) for n in some if bounded(n)}

    def only(self, names: Collection[str]) -> RescaledValues:
        """The same for these names only."""
        factors = {name: factor for name, factor in self.factors.items() if name in names}
        known = {name: counts for name, counts in self.histograms.items() if name in names}
        return RescaledValues(self.graph, factors, known)

    @cached_property
    def read(self) -> dict[str, list[str]]:
        """The values of the graph that are read, and what has factors there: a smoothing scale has
        the values of its operand."""
        own = {node.name for node in self.graph.nodes}
        found = defaultdict[str, list[str]](list)
        for name in self.factors:
            found[name if name in own else unscaled_name(name)].append(name)
        return dict(found)

    @property
    def names(self) -> Collection[str]:
        """The values that are read."""
        return self.read.keys()

    def part(self, name: str, value: Array) -> dict[str, Histogram]:
        """The histograms made of one value."""
        return {target: self._counted(target, value) for target in self.read[name]}

    def add(self, parts: Mapping[str, dict[str, Histogram]]) -> None:
        """Count the values of one more sample."""
        for found in parts.values():
            for name, seen in found.items():
                known = self.histograms.get(name)
                self.histograms[name] = seen if known is None else known.merge(seen)

    def _counted(self, name: str, value: Array) -> Histogram:
        factors, high = self.factors[name], self.highs.get(name, math.inf)
        native = native_ops()
        if native is not None and value.shape[-1:] == factors.shape and value.dtype == np.float32:
            rows = np.ascontiguousarray(value).reshape(-1, len(factors))
            found = np.empty_like(rows)
            native.quotients(rows, np.ascontiguousarray(factors, np.float32), high, found)
            return Histogram.of(found)
        found = divided(value, factors)
        if high < math.inf:  # The bound stays where it is.
            np.minimum(found, high, out=found)
        return Histogram.of(found)
