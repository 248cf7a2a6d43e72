"""Runs of the float graph over samples, and the statistics of its values.

``FloatRuns`` computes values on samples and keeps those of a few; ``ChannelReach`` and
``RescaledValues`` are collected from them.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any, Protocol

import numpy as np

from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.branches import listen_to_taken
from quantglow.interpreter.executor import peak_nbytes
from quantglow.interpreter.stacks import MOST, in_groups, interpret_together, runs_together
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.native import native_ops
from quantglow.profiling import Histogram
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.channel_groups import is_bounded, upper_bound
from quantglow.quantization.equalize.equalization import Factors, divide_channels
from quantglow.quantization.shape_variants import graph_for
from quantglow.quantization.smoothing_scales import unscaled_name
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.processes.interrupts import check_interrupt
from quantglow.support.processes.workers import at_once, each

KEPT_NBYTES, KEPT_SAMPLES = 2**28, 4
"""Maximum size, in bytes, and number of samples whose values are kept, so that a few samples are
run once.  Others are run again: among many, that hardly counts, and less memory does.
"""

TOGETHER_NBYTES = 2**27
"""Maximum size of the values of samples that run side by side, in bytes."""

Values = Mapping[str, Array]
"""Name -> value, of all nodes but Constants and those of branches that were not taken."""

Part = tuple["SampleStatistic", str, Any]
"""A statistic, the name of a value, and what the statistic made of it."""

Take = Callable[[str, Array], None]
"""Function of the name and the value of a node."""


class SampleStatistic(Protocol):
    """Collected from the values of samples.

    ``part`` sees a value of ``names`` when it has been computed, in any thread, of one sample or of
    several stacked along axis 0; then ``add`` gets the parts in the order of the samples.
    """

    @property
    def names(self) -> Collection[str]: ...

    def part(self, name: str, value: Array) -> Any: ...

    def add(self, parts: Mapping[str, Any]) -> None: ...


@dataclass
class FloatRuns:
    """The values of ``graph`` on samples, found by identity; ``cached`` has those of a few.

    A sample of another shape runs its own graph, which has the same names (``shape_variants``).
    ``nbytes``: size of the values of the samples that are kept, or will be.
    """

    graph: Graph
    cached: list[tuple[Feeds, Values]] = field(default_factory=list)
    places: int = 0
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def results(self, feeds: Feeds, nodes: Sequence[Node]) -> list[Array]:
        """The values of some nodes for one sample."""
        values: dict[str, Array] = {}
        self._see([feeds], {node.name for node in nodes}, values.__setitem__)
        return [n.value if isinstance(n, Constant) else values[n.name] for n in nodes]

    def run(self, samples: Sequence[Feeds], listeners: Sequence[Listener]) -> None:
        """``interpret`` samples of the same shapes; the values of those for which there is room are
        kept for the next request, the others run together.
        """
        graph, uncached = graph_for(samples[0], self.graph), list[Feeds]()
        for feeds in samples:
            if self._takes_place(graph):
                values: dict[str, Array] = {}
                recorder = listen_to_taken(graph, partial(_show, values.__setitem__, None))
                interpret(graph, feeds, [*listeners, recorder])
                with self.lock:
                    self.cached.append((feeds, values))
            else:
                uncached.append(feeds)
        if len(uncached) == 1:
            interpret(graph, uncached[0], listeners)
        elif uncached:
            interpret_together(graph, uncached, listeners)

    def collect(self, samples: Iterable[Feeds], *statistics: SampleStatistic) -> None:
        """Add all values of each sample to every statistic.  Each sample runs once.

        Raises ``Interrupted`` after Ctrl-C.
        """
        nbytes = peak_nbytes(self.graph)
        together = max(1, min(at_once() * MOST, TOGETHER_NBYTES // max(nbytes, 1)))
        pending = iter(samples)
        while some := list(islice(pending, together)):
            for parts in each(partial(self._parts, statistics), self._groups(some, nbytes)):
                for statistic, name, part in parts:
                    statistic.add({name: part})

    def _groups(self, samples: Sequence[Feeds], nbytes: int) -> list[Sequence[Feeds]]:
        """Consecutive samples that run together: of the same shapes, and not kept."""
        cached = {id(feeds) for feeds, _ in self.cached}

        def kind(feeds: Feeds) -> tuple[int, int]:
            graph = graph_for(feeds, self.graph)
            is_alone = id(feeds) in cached or not runs_together(graph)
            return id(graph), id(feeds) if is_alone else 0

        groups: list[Sequence[Feeds]] = []
        for _, alike in groupby(samples, kind):
            groups += in_groups(list(alike), nbytes, at_once())
        return groups

    def forget(self) -> None:
        """Free the memory of the values kept."""
        self.cached, self.places, self.nbytes = [], 0, 0

    def _parts(self, statistics: Sequence[SampleStatistic], samples: Sequence[Feeds]) -> list[Part]:
        """The parts of some samples, each with its statistic and the name of its value."""
        check_interrupt()
        parts: list[Part] = []

        def take(name: str, value: Array) -> None:
            readers = (one for one in statistics if name in one.names)
            parts.extend((one, name, one.part(name, value)) for one in readers)

        self._see(samples, set[str]().union(*(one.names for one in statistics)), take)
        return parts

    def _see(self, samples: Sequence[Feeds], names: Collection[str], take: Take) -> None:
        """Show some values of samples that ``run``; those kept are not computed again."""
        stored = next((values for cached, values in self.cached if cached is samples[0]), None)
        if stored is None:
            graph = graph_for(samples[0], self.graph)
            self.run(samples, [listen_to_taken(graph, partial(_show, take, names))])
            return
        for name in stored.keys() & names:
            take(name, stored[name])

    def _takes_place(self, graph: Graph) -> bool:
        """Whether there is room for the values of one more sample, which then has it."""
        sizes = (n.type.nbytes for n in graph.nodes if not isinstance(n, Constant))
        nbytes = sum(map(int, sizes))
        with self.lock:  # Several samples may run side by side.
            room = self.places < KEPT_SAMPLES and self.nbytes + nbytes <= KEPT_NBYTES
            if room:
                self.places += 1
                self.nbytes += nbytes
            return room


def _show(take: Take, names: Collection[str] | None, node: Node, value: Array) -> None:
    """A listener that takes the values of some nodes, or of all."""
    if not isinstance(node, Constant) and (names is None or node.name in names):
        take(node.name, value)


@dataclass
class ChannelReach:
    """The reach of values: the largest magnitude in each channel (last axis).

    ``names``: values of ``graph``.  ``by_name`` leaves out integers, and values whose last axis
    does not have the same length in all samples.
    """

    graph: Graph
    names: Collection[str]
    by_name: dict[str, Array] = field(default_factory=dict)

    def part(self, name: str, value: Array) -> Array | None:
        """The reach of one value."""
        return _reach(value) if value.ndim and value.dtype.kind == "f" else None

    def add(self, parts: Mapping[str, Array | None]) -> None:
        """Count the values of one more sample."""
        for name, now in parts.items():
            if now is not None and self.graph.by_name(name).type.fixed_shape[-1:] == now.shape:
                before = self.by_name.get(name)
                self.by_name[name] = now if before is None else np.maximum(before, now)


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
        self.highs: Mapping[str, float] = {n.name: upper_bound(n) for n in some if is_bounded(n)}

    def only(self, names: Collection[str]) -> RescaledValues:
        """The same for these names only."""
        factors = {name: factor for name, factor in self.factors.items() if name in names}
        histograms = {name: counts for name, counts in self.histograms.items() if name in names}
        return RescaledValues(self.graph, factors, histograms)

    @cached_property
    def read(self) -> dict[str, list[str]]:
        """The values of the graph that are read, and what has factors there: a smoothing scale has
        the values of its operand."""
        names = {node.name for node in self.graph.nodes}
        readers = defaultdict[str, list[str]](list)
        for name in self.factors:
            readers[name if name in names else unscaled_name(name)].append(name)
        return dict(readers)

    @property
    def names(self) -> Collection[str]:
        """The values that are read."""
        return self.read.keys()

    def part(self, name: str, value: Array) -> dict[str, Histogram]:
        """The histograms made of one value."""
        return {target: self._count(target, value) for target in self.read[name]}

    def add(self, parts: Mapping[str, dict[str, Histogram]]) -> None:
        """Count the values of one more sample."""
        for histograms in parts.values():
            for name, histogram in histograms.items():
                before = self.histograms.get(name)
                self.histograms[name] = histogram if before is None else before.merge(histogram)

    def _count(self, name: str, value: Array) -> Histogram:
        factors, high = self.factors[name], self.highs.get(name, math.inf)
        native = native_ops()
        if native is not None and value.shape[-1:] == factors.shape and value.dtype == np.float32:
            rows = np.ascontiguousarray(value).reshape(-1, len(factors))
            quotients = np.empty_like(rows)
            native.quotients(rows, np.ascontiguousarray(factors, np.float32), high, quotients)
            return Histogram.of(quotients)
        quotients = divide_channels(value, factors)
        if high < math.inf:  # The bound stays where it is.
            np.minimum(quotients, high, out=quotients)
        return Histogram.of(quotients)
