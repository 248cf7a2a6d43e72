"""Weights that the graphs of a quantized model have as floats: a file does not round them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from quantglow.frontend.reading.proto import all_nodes
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant

SIZES = frozenset({"Shape", "Size"})
"""Operators whose results no element of a weight changes."""


def shown(proto: onnx.ModelProto, graphs: Iterable[Graph]) -> set[str]:
    """Names of values that float Constants of the graphs were computed from at import: these have
    the names of the model's values.  Others, which passes make, may have any part of a weight.
    """
    reads, names = reads_of(proto), set[str]()
    for graph in graphs:
        nodes = list(graph.every_node())
        constants = (n for n in nodes if isinstance(n, Constant) and n.type.dtype.is_float)
        waiting = [node.name for node in constants if node.name in reads]
        names.update(waiting)
        while waiting:
            new = reads.get(waiting.pop(), frozenset()) - names
            names |= new
            waiting.extend(new)
    return names


def reads_of(proto: onnx.ModelProto) -> dict[str, frozenset[str]]:
    """The values of a model, each with those that its node and the subgraphs of it read."""
    reads: dict[str, frozenset[str]] = {t.name: frozenset() for t in proto.graph.initializer}
    for node in all_nodes(proto.graph.node):
        inner = (
            () if node.op_type in SIZES else (n for each in all_nodes([node]) for n in each.input)
        )
        reads.update(dict.fromkeys(node.output, frozenset(inner)))
    return reads
