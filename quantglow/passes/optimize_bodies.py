"""The bodies of loops are graphs: all passes run on them, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Node


@dataclass(frozen=True)
class OptimizeBodies:
    """Loop(x, body) -> Loop(x, optimize(body)); new names are unique in the whole graph."""

    optimize: Callable[[Graph], Graph]
    name: str = "optimize-bodies"

    def __call__(self, graph: Graph) -> Graph:
        names = Names({node.name for node in graph.every_node()})

        def optimized(body: Graph) -> Graph:
            own = {node.name for node in body.every_node()}
            new = self.optimize(body)

            def renamed(node: Node) -> Node:
                known = node.name in own or node.name not in names.taken
                names.taken.add(node.name)
                return node if known else replace(node, name=names.fresh(node.name))

            return new.rebuild(renamed)

        return graph.map_bodies(optimized)
