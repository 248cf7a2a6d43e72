"""Groups of values that share quantization parameters, and the element type of each group.

Operators that only move, select or join elements have one scale and zero point for operands and
results, so that they copy integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Clip, Concat, Relu
from quantglow.ir.types import ElementType
from quantglow.profiling import Range
from quantglow.quantization.plan.params import activation_element

EXTREME_RATIO = 16.0
"""Minimum ratio of the range of a Concat to that of a part from which the part keeps its own scale
for its other readers."""


def parameter_groups(
    graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> dict[Node, Node]:
    """Value with a range -> the representative of those that share its parameters."""
    groups = UnionFind(ranges)
    for node in graph.compute_nodes():
        if node not in reasons:
            for operand in _sharing(node, graph, ranges, reasons):
                groups.join(node, operand)
    return {node: groups.find(node) for node in ranges}


def element_types(
    ranges: Mapping[Node, Range], groups: Mapping[Node, Node], symmetric: bool
) -> dict[Node, ElementType]:
    """One element type for each group of values that share parameters."""
    unions: dict[Node, Range] = {}
    for node, values in ranges.items():
        root = groups[node]
        unions[root] = unions[root].union(values) if root in unions else values
    types = {root: activation_element(r, symmetric) for root, r in unions.items()}
    return {node: types[groups[node]] for node in ranges}


def _sharing(
    node: Node, graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> list[Node]:
    """The operands that should have the parameters of the node's result."""
    if isinstance(node, Concat):
        return [p for p in node.parts if not _keeps_own_scale(p, node, graph, ranges, reasons)]
    if node.has(Trait.KEEPS_QUANTIZATION):
        return [operand for operand in node.operands if operand.type.dtype.is_float]
    if isinstance(node, Relu | Clip) and _clips_nothing(node, ranges[node.x]):
        return [node.x]
    return []


def _clips_nothing(node: Relu | Clip, x: Range) -> bool:
    """Whether a Relu or Clip leaves every value of the range as it is."""
    low, high = (0.0, float("inf")) if isinstance(node, Relu) else (node.low, node.high)
    return low <= x.low and x.high <= high and low <= 0 <= high


def _keeps_own_scale(
    part: Node,
    concat: Concat,
    graph: Graph,
    ranges: Mapping[Node, Range],
    reasons: Mapping[Node, str],
) -> bool:
    """Whether a part is so narrow that its other int8 readers need a finer scale."""
    others = [u for u in graph.users[part] if u is not concat and u not in reasons]
    width, whole = _with_zero(ranges[part]).width, _with_zero(ranges[concat]).width
    return bool(others) and 0 < width * EXTREME_RATIO < whole


def _with_zero(values: Range) -> Range:
    return values.union(Range(0.0, 0.0))


class UnionFind:
    """Disjoint sets of nodes."""

    def __init__(self, nodes: Iterator[Node] | Mapping[Node, object] | list[Node]) -> None:
        self.parents = {node: node for node in nodes}

    def __contains__(self, node: Node) -> bool:
        return node in self.parents

    def find(self, node: Node) -> Node:
        """The representative of the node's set."""
        root = node
        while self.parents[root] is not root:
            root = self.parents[root]
        # Path compression: later searches from these nodes take one step.
        while self.parents[node] is not root:
            self.parents[node], node = root, self.parents[node]
        return root

    def join(self, one: Node, other: Node) -> None:
        self.parents[self.find(other)] = self.find(one)
