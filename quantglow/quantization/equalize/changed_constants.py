"""New values for the Constants of single nodes.

Layers share Constants: ``eliminate-common-subexpressions`` merges equal ones, and an ONNX model may
give one initializer to many layers.  A new value for one layer is a new Constant, whose name no
other node has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Constant, Node


@dataclass(frozen=True)
class Owner:
    """Names new Constants after the nodes of ``graph`` that read them.

    The name depends on the graph, the node and the operand only, so that Constants of several
    graphs made from this one go together.
    """

    graph: Graph
    names: Names

    @staticmethod
    def of(graph: Graph) -> Owner:
        """For one traversal of the graph: each operand of a node gets one Constant."""
        return Owner(graph, Names.of(graph))

    def constant(self, node: Node, operand: str, value: Array) -> Constant:
        """The new Constant of one node.  It keeps the name of the old one if only this node read
        that.
        """
        old: Node | None = getattr(node, operand)
        alone = old is not None and self.graph.use_counts[old] == 1
        name = old.name if old and alone else self.names.fresh(f"{node.name}:{operand}")
        return Constant(name=name, value=value.astype(np.float32, copy=False))
