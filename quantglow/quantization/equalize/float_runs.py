"""The values of a float graph on samples, for all statistics that are collected before rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.choices import taken_only
from quantglow.processes.interrupts import check_interrupt
from quantglow.processes.workers import at_once, each
from quantglow.profiling.data import Feeds
from quantglow.quantization.recovery.sampling import peak_nbytes
from quantglow.quantization.shape_variants import graph_for
from quantglow.types import Array

KEPT_NBYTES, KEPT_SAMPLES = 2**28, 4
"""Maximum size, in bytes, and number of samples whose values are kept, so that a few samples are
run once.  Others are run again: among many, that hardly counts, and less memory does.
"""

TOGETHER_NBYTES = 2**27
"""Maximum size of the values of samples that run side by side, in bytes."""

Values = Mapping[str, Array]
"""Name -> value, of all nodes but Constants and those of branches that were not taken."""

Take = Callable[[str, Array], None]
"""Function of the name and the value of a node."""


class SampleStatistic(Protocol):
    """Collected from the values of samples.

    ``part`` sees a value of ``names`` when it has been computed, in any thread; then ``add`` gets
    the parts of one sample after the other.
    """

    @property
    def names(self) -> Collection[str]: ...

    def part(self, name: str, value: Array) -> Any: ...

    def add(self, parts: Mapping[str, Any]) -> None: ...


@dataclass
class FloatRuns:
    """The values of ``graph`` on samples, found by identity; ``kept`` has those of a few.

    A sample of another shape runs its own graph, which has the same names (``shape_variants``).
    ``nbytes``: size of the values of the samples that are kept, or will be.
    """

    graph: Graph
    kept: list[tuple[Feeds, Values]] = field(default_factory=list)
    places: int = 0
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def results(self, feeds: Feeds, nodes: Sequence[Node]) -> list[Array]:
        """The values of some nodes for one sample."""
        found: dict[str, Array] = {}
        self._see(feeds, {node.name for node in nodes}, found.__setitem__)
        return [n.value if isinstance(n, Constant) else found[n.name] for n in nodes]

    def run(self, feeds: Feeds, listeners: Sequence[Listener]) -> None:
        """``interpret``; the values are kept for the next request, if there is room."""
        graph = graph_for(feeds, self.graph)
        found: dict[str, Array] | None = {} if self._takes_place(graph) else None
        seen = list(listeners)
        if found is not None:
            seen.append(taken_only(graph, partial(_shown, found.__setitem__, None)))
        interpret(graph, feeds, seen)
        if found is not None:
            with self.lock:
                self.kept.append((feeds, found))

    def collect(self, samples: Iterable[Feeds], *statistics: SampleStatistic) -> None:
        """Add all values of each sample to every statistic.  Each sample runs once.

        Raises ``Interrupted`` after Ctrl-C.
        """
        together = max(1, min(at_once(), TOGETHER_NBYTES // max(peak_nbytes(self.graph), 1)))
        rest = iter(samples)
        while some := list(islice(rest, together)):
            check_interrupt()
            for parts in each(partial(self._parts, statistics), some):
                for statistic, own in zip(statistics, parts, strict=True):
                    statistic.add(own)

    def forget(self) -> None:
        """Free the memory of the values kept."""
        self.kept, self.places, self.nbytes = [], 0, 0

    def _parts(self, statistics: Sequence[SampleStatistic], feeds: Feeds) -> list[dict[str, Any]]:
        """The parts of one sample, for each statistic."""
        parts: list[dict[str, Any]] = [{} for _ in statistics]

        def take(name: str, value: Array) -> None:
            for statistic, own in zip(statistics, parts, strict=True):
                if name in statistic.names:
                    own[name] = statistic.part(name, value)

        self._see(feeds, set[str]().union(*(one.names for one in statistics)), take)
        return parts

    def _see(self, feeds: Feeds, names: Collection[str], take: Take) -> None:
        """Show some values of one sample, kept or computed now."""
        known = next((values for kept, values in self.kept if kept is feeds), None)
        if known is None:
            graph = graph_for(feeds, self.graph)
            self.run(feeds, [taken_only(graph, partial(_shown, take, names))])
            return
        for name in known.keys() & names:
            take(name, known[name])

    def _takes_place(self, graph: Graph) -> bool:
        """Whether there is room for the values of one more sample, which then has it."""
        nbytes = sum(n.type.nbytes for n in graph.nodes if not isinstance(n, Constant))
        with self.lock:  # Several samples may run side by side.
            room = self.places < KEPT_SAMPLES and self.nbytes + nbytes <= KEPT_NBYTES
            if room:
                self.places += 1
                self.nbytes += nbytes
            return room


def _shown(take: Take, names: Collection[str] | None, node: Node, value: Array) -> None:
    """A listener that takes the values of some nodes, or of all."""
    if not isinstance(node, Constant) and (names is None or node.name in names):
        take(node.name, value)
