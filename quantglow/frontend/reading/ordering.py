"""Nodes in the order of their values, as ONNX wants them: some tools append what they insert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import onnx

from quantglow.frontend.reading.proto import all_nodes, every_node


def sorted_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each graph's nodes behind those that they read, else in their order.

    It is the same object if they are so already.  Nodes in a cycle stay where they are.
    """
    if all(order_of(nodes) is None for nodes in node_lists(proto)):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for nodes in list(node_lists(made)):
        if (order := order_of(nodes)) is not None:
            moved = [onnx.NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
            del nodes[:]
            nodes.extend(moved)
    return made


def node_lists(proto: onnx.ModelProto) -> Iterator[Any]:
    """The nodes of the subgraphs, the innermost first, of the functions, and of the graph."""
    graphs = [g for n in every_node(proto) for a in n.attribute for g in (a.g, *a.graphs)]
    yield from (graph.node for graph in reversed(graphs))
    yield from (function.node for function in proto.functions)
    yield proto.graph.node


def order_of(nodes: Sequence[onnx.NodeProto]) -> list[int] | None:
    """The positions of nodes in order; None where they are sorted, or cannot be."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in read_by(node) if name in makers} for node in nodes]
    if all(max(own, default=-1) < i for i, own in enumerate(needs)):
        return None
    readers: list[list[int]] = [[] for _ in needs]
    for i, own in enumerate(needs):
        for maker in own:
            readers[maker].append(i)
    missing = list(map(len, needs))
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    found = []
    while ready:
        found.append(heappop(ready))
        for reader in readers[found[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return found if len(found) == len(needs) else None


def read_by(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, in its subgraphs, too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {name for inner in all_nodes(graph.node) for name in inner.output}
            own |= {given.name for given in graph.input} | {w.name for w in graph.initializer}
            read = [name for inner in all_nodes(graph.node) for name in inner.input]
            read += [end.name for end in graph.output]
            yield from (name for name in read if name not in own)
