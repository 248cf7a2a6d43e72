"""Statistics of a float graph's values that equalization needs, see ``FloatRuns.collect``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.processes.workers import each
from quantglow.profiling import Histogram
from quantglow.quantization.equalize.channel_groups import bounded, high_of
from quantglow.quantization.equalize.equalization import Factors, divided
from quantglow.quantization.equalize.float_runs import Values
from quantglow.quantization.smoothing_scales import unscaled_name
from quantglow.types import Array


@dataclass
class ChannelReach:
    """The reach of values: the largest magnitude in each channel (last axis).

    ``names``: values of ``graph``.  ``found`` leaves out integers, and values whose last axis does
    not have the same length in all samples.
    """

    graph: Graph
    names: Collection[str]
    found: dict[str, Array] = field(default_factory=dict)

    def add(self, values: Values) -> None:
        """Count the values of one more sample."""
        some = ((name, values[name]) for name in self.names if name in values)
        reals = {name: v for name, v in some if v.ndim and v.dtype.kind == "f"}
        for name, now in zip(reals, each(_reach, reals.values()), strict=True):
            if self.graph.by_name(name).type.shape[-1:] == now.shape:
                known = self.found.get(name)
                self.found[name] = now if known is None else np.maximum(known, now)


def _reach(value: Array) -> Array:
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

    def add(self, values: Values) -> None:
        """Count the values of one more sample; a smoothing scale has those of its operand."""
        sources = {n: n if n in values else unscaled_name(n) for n in self.factors}
        entries = [(n, values[source]) for n, source in sources.items() if source in values]
        for (name, _), seen in zip(entries, each(self._counted, entries), strict=True):
            known = self.histograms.get(name)
            self.histograms[name] = seen if known is None else known.merge(seen)

    def _counted(self, entry: tuple[str, Array]) -> Histogram:
        name, value = entry
        value = divided(value, self.factors[name])
        if name in self.highs:  # The bound stays where it is.
            np.minimum(value, self.highs[name], out=value)
        return Histogram.of(value)
