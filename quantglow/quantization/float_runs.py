"""A float graph's values on samples, for all that asks for them before anything is rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.choices import taken_only
from quantglow.profiling import Histogram
from quantglow.profiling.data import Feeds
from quantglow.quantization.channel_groups import bounded, high_of
from quantglow.quantization.equalization import divided
from quantglow.quantization.other_shapes import graph_for
from quantglow.quantization.taps import tapped_name
from quantglow.types import Array
from quantglow.workers import each

KEPT_NBYTES, KEPT_SAMPLES = 2**28, 4
"""Of values that are kept, so that a few samples are run once.  Others are run again: where there
are many, that hardly counts, and less memory does.
"""

Values = Mapping[str, Array]
"""By name, of all nodes but Constants and those of branches that were not taken."""


@dataclass
class FloatRuns:
    """The values of ``graph`` on samples, found by identity; ``kept`` has those of the first.

    Of a sample elsewhere (see ``other_shapes``) those of its own graph, which has the same names.
    """

    graph: Graph
    kept: list[tuple[Feeds, Values]] = field(default_factory=list)
    nbytes: int = 0

    def values(self, feeds: Feeds) -> Values:
        """All values of one sample."""
        for known, values in self.kept:
            if known is feeds:
                return values
        return self.run(feeds)

    def results(self, feeds: Feeds, nodes: Iterable[Node]) -> list[Array]:
        """The values of some nodes for one sample."""
        values = self.values(feeds)
        return [n.value if isinstance(n, Constant) else values[n.name] for n in nodes]

    def run(self, feeds: Feeds, listeners: Sequence[Listener] = ()) -> Values:
        """``interpret``; the values are kept for who asks for those of this sample next."""
        found: dict[str, Array] = {}
        graph = graph_for(feeds, self.graph)
        interpret(graph, feeds, [*listeners, taken_only(graph, _recorder(found))])
        nbytes = sum(value.nbytes for value in found.values())
        if self.nbytes + nbytes <= KEPT_NBYTES and len(self.kept) < KEPT_SAMPLES:
            self.kept.append((feeds, found))
            self.nbytes += nbytes
        return found

    def forget(self) -> None:
        """Free the memory: nobody will ask for the values kept."""
        self.kept, self.nbytes = [], 0

    def channel_reach(self, samples: Iterable[Feeds]) -> dict[str, Array]:
        """The largest magnitude in each channel (last axis) of every float value whose last axis is
        as long in all samples.
        """
        found: dict[str, Array] = {}
        for feeds in samples:
            values = self.values(feeds).items()
            reals = {name: v for name, v in values if v.ndim and v.dtype.kind == "f"}
            for name, now in zip(reals, each(_reach, reals.values()), strict=True):
                if self.graph.by_name(name).type.shape[-1:] == now.shape:
                    found[name] = np.maximum(found[name], now) if name in found else now
        return found

    def histograms(
        self, samples: Sequence[Feeds], factors: Mapping[str, Array]
    ) -> dict[str, Histogram]:
        """Of the values that have factors, divided by these."""
        found: dict[str, Histogram] = {}
        highs = {n.name: high_of(n) for n in self.graph.nodes if n.name in factors and bounded(n)}

        def counted(entry: tuple[str, Array]) -> Histogram:
            name, value = entry
            value = divided(value, factors[name])
            if name in highs:  # The bound stays where it is.
                np.minimum(value, highs[name], out=value)
            return Histogram.of(value)

        for feeds in samples:
            values = self.values(feeds)
            known = {n: n if n in values else tapped_name(n) for n in factors}
            entries = [(n, values[source]) for n, source in known.items() if source in values]
            for (name, _), seen in zip(entries, each(counted, entries), strict=True):
                found[name] = found[name].merge(seen) if name in found else seen
        return found


def _recorder(found: dict[str, Array]) -> Listener:
    def record(node: Node, value: Array) -> None:
        if not isinstance(node, Constant):
            found[node.name] = value

    return record


def _reach(value: Array) -> Array:
    axes = tuple(range(value.ndim - 1))
    highest, lowest = value.max(axis=axes, initial=0), value.min(axis=axes, initial=0)
    return np.asarray(np.maximum(highest, -lowest))
