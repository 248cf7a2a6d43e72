"""Names by which the user may know a value, beside the one that it has in a graph."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node


def known_names(graph: Graph) -> dict[str, Node]:
    """Every name that the user may know -> the node of ``graph`` that computes the value."""
    own = {node.name: node for node in graph.compute_nodes()}
    others = {name: own[value] for name, value in graph.aliases.items() if value in own}
    return others | own


def with_aliases(graph: Graph, before: Graph) -> Graph:
    """``graph``, which passes made from ``before``, with the names that were known there.

    Fusion keeps the last name: a value that is gone is now part of its first reader that is left.
    """
    if graph is before:
        return graph
    found = {node.name: node.name for node in graph.compute_nodes()}
    for node in reversed(before.compute_nodes()):
        readers = (found.get(user.name) for user in before.users[node])
        if node.name not in found and (now := next(filter(None, readers), None)) is not None:
            found[node.name] = now
    others = {name: found[value] for name, value in before.aliases.items() if value in found}
    gone = {name: now for name, now in found.items() if name != now}
    return replace(graph, aliases={**others, **gone})
