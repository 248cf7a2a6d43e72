"""The graphs of one model: one for each combination of input shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quantglow.graph.graph import Graph
from quantglow.graph.signature import Shape, Shapes, Signature
from quantglow.types import Array

KEPT = 8
"""Graphs that are kept, those used last: samples often alternate between few shapes."""


@dataclass(eq=False)
class Family:
    """Equal names in the graphs of a family mean equal values of the model.

    ``make`` gives the graph for shapes that ``signature`` allows, ``source`` the bytes of the
    model.  Not for several threads.
    """

    signature: Signature
    source_hash: str
    make: Callable[[Shapes], Graph]
    source: Callable[[], bytes] | None = None
    _kept: OrderedDict[tuple[Shape, ...], Graph] = field(default_factory=OrderedDict)

    @staticmethod
    def of(graph: Graph | Family) -> Family:
        """The family of one graph, or the family itself."""
        if isinstance(graph, Family):
            return graph
        return Family(graph.signature, graph.source_hash, lambda shapes: graph)

    def at(self, shapes: Shapes) -> Graph:
        """The graph for these input shapes.  Raises ``InputError`` and what ``make`` raises."""
        key = tuple(shapes[port.name] for port in self.signature.inputs)
        if key not in self._kept:
            if self.signature.is_free:
                self.signature.check(shapes)
            self._kept[key] = self.make(shapes)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def fitting(self, feeds: Mapping[str, Array]) -> Graph:
        """The graph for the shapes of these arrays."""
        return self.at({port.name: feeds[port.name].shape for port in self.signature.inputs})
