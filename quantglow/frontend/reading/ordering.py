"""Nodes in the order of their values, as ONNX wants them: some tools append what they insert."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import onnx
from google.protobuf.message import DecodeError

Unsorted = list[tuple[Any, list[int]]]
"""Lists of nodes, and the positions of their nodes in order."""


def sorted_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each graph's nodes behind those that they read, else in their order.

    It is the same object if they are so already.  Nodes in a cycle stay where they are.
    """
    try:
        if not unsorted(proto):
            return proto
        made = onnx.ModelProto()
        made.CopyFrom(proto)
        for nodes, order in unsorted(made):
            moved = [onnx.NodeProto() for _ in order]
            for node, position in zip(moved, order, strict=True):
                node.CopyFrom(nodes[position])
            del nodes[:]
            nodes.extend(moved)
        return made
    except (RecursionError, DecodeError):  # The checker refuses branches in so many others.
        return proto


def unsorted(proto: onnx.ModelProto) -> Unsorted:
    """The lists of nodes that are not in order, those of inner graphs first."""
    found: Unsorted = []
    for nodes in (*(function.node for function in proto.functions), proto.graph.node):
        read_outside(nodes, (), found)
    return found


def read_outside(
    nodes: Sequence[onnx.NodeProto], given: Iterable[str], found: Unsorted
) -> set[str]:
    """The values that nodes read and neither make nor are ``given``; adds to ``found``."""
    reads = [read_by(node, found) for node in nodes]
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in own if name in makers} for own in reads]
    if (order := order_of(needs)) is not None:
        found.append((nodes, order))
    return set().union(*reads) - makers.keys() - set(given)


def read_by(node: onnx.NodeProto, found: Unsorted) -> set[str]:
    """The values that a node reads, in its subgraphs, too."""
    reads = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            if graph.node or graph.output:
                given = {value.name for value in graph.input}
                given |= {weights.name for weights in graph.initializer}
                reads |= read_outside(graph.node, given, found)
                made = {name for inner in graph.node for name in inner.output}
                reads |= {end.name for end in graph.output} - made - given
    return reads


def order_of(needs: Sequence[set[int]]) -> list[int] | None:
    """Positions so that each comes behind those that it needs; None where they are so, or cannot
    be.
    """
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
