"""Weights that the graphs of a quantized model have as floats: a file does not round them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from quantglow.frontend.reading.proto import all_nodes
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.lazy import cached_property


def shown(proto: onnx.ModelProto, graphs: Iterable[Graph]) -> set[str]:
    """Names of values that a float Constant of a graph was computed from, by names of nodes, which
    are those of ONNX values before the first suffix of a pass.
    """
    values, found = ValueReads(proto), set[str]()
    for graph in graphs:
        nodes = list(graph.every_node())
        ends = (n for n in nodes if isinstance(n, Constant) and n.type.dtype.is_float)
        computed = (node for node in nodes if not isinstance(node, Constant))
        found |= values.behind(values.named(ends), set(values.named(computed)))
    return found


@dataclass(frozen=True)
class ValueReads:
    """The values of a model, each with those that its node reads."""

    proto: onnx.ModelProto

    @cached_property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """Initializers read nothing; a node reads what its subgraphs read, too."""
        found: dict[str, tuple[str, ...]] = {t.name: () for t in self.proto.graph.initializer}
        for node in all_nodes(self.proto.graph.node):
            inner = [name for n in all_nodes([node]) for name in n.input]
            found.update(dict.fromkeys(node.output, tuple(inner)))
        return found

    def named(self, nodes: Iterable[Node]) -> Iterator[str]:
        """The values that nodes of a graph are named for."""
        for name in (node.name for node in nodes):
            while name and name not in self.reads:
                name = name.rpartition(":")[0]
            if name:
                yield name

    def behind(self, ends: Iterable[str], computed: set[str]) -> set[str]:
        """The ends and all values they are computed from, up to those ``computed`` in a graph."""
        waiting = list(ends)
        found = set(waiting)
        while waiting:
            new = set(self.reads.get(waiting.pop(), ())) - found - computed
            found |= new
            waiting.extend(new)
        return found
