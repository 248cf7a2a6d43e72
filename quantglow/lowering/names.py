"""Names of helper nodes that rules make."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node


def unique_names(graph: Graph) -> Graph:
    """Number helper nodes whose name is taken."""
    taken, seen = {node.name for node in graph.nodes}, set[str]()

    def renamed(node: Node) -> Node:
        name, number = node.name, 2
        while name in seen or (number > 2 and name in taken):
            name, number = f"{node.name}_{number}", number + 1
        seen.add(name)
        return node if name == node.name else replace(node, name=name)

    return graph.rebuild(renamed)
