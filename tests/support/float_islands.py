"""Operators that quantization left in float between integers."""

from __future__ import annotations

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.quantization import Quantize


def float_islands(graph: Graph) -> tuple[Node, ...]:
    """Operators computing in float that get int8 results and lead to int8 operators again."""
    after = _behind_integers(graph)
    before: set[Node] = set()
    for node in reversed(graph.nodes):
        if any(isinstance(user, Quantize) or user in before for user in graph.users[node]):
            before.add(node)
    return tuple(n for n in after if n in before and not _touches_integers(n))


def _behind_integers(graph: Graph) -> dict[Node, None]:
    """Nodes that compute on integers, and all that depend on them, in order."""
    actual: dict[Node, None] = {}
    for node in graph.nodes:
        if _touches_integers(node) or any(o in actual for o in node.operands):
            actual[node] = None
    return actual


def _touches_integers(node: Node) -> bool:
    """Whether an operand is int8; a Quantize is part of the way back, not of an island."""
    return isinstance(node, Quantize) or any(o.type.quant for o in node.operands)
