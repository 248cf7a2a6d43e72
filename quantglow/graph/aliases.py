"""Names by which the user may know a value, beside the one that it has in a graph."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node

NOTHING = ""
"""The target of a name that is no operator any more."""


def known_names(graph: Graph) -> dict[str, Node | None]:
    """Every name that the user may know -> the node of ``graph`` that computes the value; None for
    what is no operator any more, as the size of a known shape.
    """
    own: dict[str, Node | None] = {node.name: node for node in graph.compute_nodes()}
    return {name: own.get(value) for name, value in graph.aliases.items()} | own


def with_aliases(graph: Graph, before: Graph) -> Graph:
    """``graph``, which passes made from ``before``, with the names that were known there.

    Fusion keeps the last name: a value that is gone is now part of its first reader that is left.
    """
    if graph is before:
        return graph
    found = {node.name: node.name for node in graph.compute_nodes()}
    for node in reversed(before.compute_nodes()):
        readers = (found.get(user.name) for user in before.users[node])
        found.setdefault(node.name, next(filter(None, readers), NOTHING))
    others = {name: found.get(value, NOTHING) for name, value in before.aliases.items()}
    gone = {name: now for name, now in found.items() if name != now}
    return replace(graph, aliases={**others, **gone})
