"""A float graph's values on samples, for all that asks for them before anything is rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.choices import taken_only
from quantglow.interrupts import check_interrupt
from quantglow.profiling.data import Feeds
from quantglow.quantization.shape_variants import graph_for
from quantglow.types import Array
from quantglow.workers import at_once, each

KEPT_NBYTES, KEPT_SAMPLES = 2**28, 4
"""Of values that are kept, so that a few samples are run once.  Others are run again: where there
are many, that hardly counts, and less memory does.
"""

TOGETHER_NBYTES = 2**27
"""Of values of samples that run side by side."""

Values = Mapping[str, Array]
"""By name, of all nodes but Constants and those of branches that were not taken."""


class Viewer(Protocol):
    """Learns from the values of one sample after the other."""

    def see(self, values: Values) -> None: ...


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
        found = self._known(feeds) or self._run(feeds)
        self._keep(feeds, found)
        return found

    def results(self, feeds: Feeds, nodes: Iterable[Node]) -> list[Array]:
        """The values of some nodes for one sample."""
        values = self.values(feeds)
        return [n.value if isinstance(n, Constant) else values[n.name] for n in nodes]

    def run(self, feeds: Feeds, listeners: Sequence[Listener]) -> None:
        """``interpret``; the values are kept for who asks for those of this sample next."""
        self._keep(feeds, self._run(feeds, listeners))

    def show(self, samples: Iterable[Feeds], *viewers: Viewer) -> None:
        """Every viewer sees all values of each sample, which runs once for them all.

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
                for viewer in viewers:
                    viewer.see(values)

    def forget(self) -> None:
        """Free the memory: nobody will ask for the values kept."""
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
        room = len(self.kept) < KEPT_SAMPLES and self.nbytes + nbytes <= KEPT_NBYTES
        if room and self._known(feeds) is None:
            self.kept.append((feeds, values))
            self.nbytes += nbytes


def _recorder(found: dict[str, Array]) -> Listener:
    def record(node: Node, value: Array) -> None:
        if not isinstance(node, Constant):
            found[node.name] = value

    return record
