"""One node for each value: equal operators on the same operands, equal Constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node, operand_fields

PREFIX = 16
"""Elements of a Constant that go into its key; the rest is compared."""


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """f(x), f(x) -> f(x), read twice.  The first of equal nodes, in graph order, stays."""

    name: str = "eliminate-common-subexpressions"

    def __call__(self, graph: Graph) -> Graph:
        seen = Seen()
        return graph.rebuild(seen.first)


@dataclass
class Seen:
    """Nodes met so far, by what they compute."""

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    constants: dict[Hashable, list[Constant]] = field(default_factory=dict)

    def first(self, node: Node) -> Node:
        """The first node that computes the same."""
        if isinstance(node, Input):
            return node
        if isinstance(node, Constant):
            return self.first_constant(node)
        key = (type(node), node.operands, operand_layout(node), tuple(node.attributes().values()))
        return self.nodes.setdefault(key, node)

    def first_constant(self, node: Constant) -> Constant:
        start = node.value.reshape(-1)[:PREFIX].tobytes()
        same = self.constants.setdefault((node.type, start), [])
        for other in same:
            if other is node or equal_bits(node, other):
                return other
        same.append(node)
        return node


def operand_layout(node: Node) -> tuple[bool, ...]:
    """Presence of each optional operand."""
    return tuple([getattr(node, name) is not None for name in operand_fields(type(node))])


def equal_bits(a: Constant, b: Constant) -> bool:
    """Whether two arrays of one type are the same, NaN and the sign of zero included."""
    return np.array_equal(a.value.reshape(-1).view(np.uint8), b.value.reshape(-1).view(np.uint8))


eliminate_common_subexpressions = EliminateCommonSubexpressions()
