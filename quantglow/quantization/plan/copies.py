"""Values that enter a model as inputs and leave it as outputs, only moved: caches of decoders, for
one.  They are exact in the outputs; int8 operators read a rounded copy.
"""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.graph.traits import Trait

COPIED = "copies numbers of an input to an output"


def copies(graph: Graph) -> frozenset[Node]:
    """Operators on ways from a float input to an output that only move numbers."""
    entering: set[Node] = {node for node in graph.inputs if node.type.dtype.is_float}
    moving: list[Node] = []
    for node in graph.compute_nodes():
        if node.has(Trait.MOVES) and any(operand in entering for operand in node.operands):
            entering.add(node)
            moving.append(node)
    leaving: set[Node] = set()
    ends = {node for _, node in graph.outputs}
    for node in reversed(moving):
        if node in ends or any(user in leaving for user in graph.users[node]):
            leaving.add(node)
    return frozenset(leaving)
