"""The values of a float graph on samples, for all statistics that are collected before rounding."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.choices import taken_only
from quantglow.processes.interrupts import check_interrupt
from quantglow.processes.workers import at_once, each
from quantglow.profiling.data import Feeds
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


class SampleStatistic(Protocol):
    """Collected from the values of one sample after the other."""

    def add(self, values: Values) -> None: ...


@dataclass
class FloatRuns:
    """The values of ``graph`` on samples, found by identity; ``kept`` has those of the first.

    A sample of another shape runs its own graph, which has the same names (``shape_variants``).
    """

    graph: Graph
    kept: list[tuple[Feeds, Values]] = field(default_factory=list)
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def values(self, feeds: Feeds) -> Values:
        """All values of one sample."""
        found = self._known(feeds) or self._run(feeds)
        self._keep(feeds, found)
        return found

    def results(self, feeds: Feeds, nodes: Iterable[Node]) -> list[Array]:
        """The values of some nodes for one sample."""
        values = self.values(feeds)
        return [n.value if isinstance(n, Constant) else values[n.name] for n in nodes]

    def run(self, feeds: Feeds, listeners: Sequence[Listener]) -> None:
        """``interpret``; the values are kept for the next request for this sample."""
        self._keep(feeds, self._run(feeds, listeners))

    def collect(self, samples: Iterable[Feeds], *statistics: SampleStatistic) -> None:
        """Add all values of each sample to every statistic.  Each sample runs once.

        Raises ``Interrupted`` after Ctrl-C.
        """
        nbytes = sum(node.type.nbytes for node in self.graph.compute_nodes())
        together = max(1, min(at_once(), TOGETHER_NBYTES // max(nbytes, 1)))
        rest = iter(samples)
        while some := list(islice(rest, together)):
            check_interrupt()
            found = each(lambda feeds: self._known(feeds) or self._run(feeds), some)
            for feeds, values in zip(some, found, strict=True):
                self._keep(feeds, values)
                for statistic in statistics:
                    statistic.add(values)

    def forget(self) -> None:
        """Free the memory of the values kept."""
        self.kept, self.nbytes = [], 0

    def _known(self, feeds: Feeds) -> Values | None:
        return next((values for known, values in self.kept if known is feeds), None)

    def _run(self, feeds: Feeds, listeners: Sequence[Listener] = ()) -> Values:
        found: dict[str, Array] = {}
        graph = graph_for(feeds, self.graph)
        interpret(graph, feeds, [*listeners, taken_only(graph, _recorder(found))])
        return found

    def _keep(self, feeds: Feeds, values: Values) -> None:
        """Keep the values if there is room."""
        nbytes = sum(value.nbytes for value in values.values())
        with self.lock:  # Several samples may run side by side.
            room = len(self.kept) < KEPT_SAMPLES and self.nbytes + nbytes <= KEPT_NBYTES
            if room and self._known(feeds) is None:
                self.kept.append((feeds, values))
                self.nbytes += nbytes


def _recorder(found: dict[str, Array]) -> Listener:
    def record(node: Node, value: Array) -> None:
        if not isinstance(node, Constant):
            found[node.name] = value

    return record
