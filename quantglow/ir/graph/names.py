"""Names of nodes: unique ones for new nodes, and those by which users know values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Node

if TYPE_CHECKING:
    from quantglow.ir.graph.graph import Graph


@dataclass
class Names:
    """The names of a graph's nodes and of the nodes made since."""

    used: set[str] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph) -> Names:
        """Names that new nodes of this graph must not have."""
        return Names(set(graph.names))

    def fresh(self, name: str) -> str:
        """``name``, or if it is taken ``name_2``, ``name_3``, …; the result is taken from
        now on.
        """
        candidate, number = name, 2
        while candidate in self.used:
            candidate, number = f"{name}_{number}", number + 1
        self.used.add(candidate)
        return candidate


def known_names(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """Every name that the user may know -> the nodes of ``graph`` that compute the values; none for
    what is no operator any more, as the size of a known shape.
    """
    present = {node.name: (node,) for node in graph.compute_nodes()}

    def nodes(value: str) -> tuple[Node, ...]:
        visited = set[str]()
        while value not in present and value not in visited:
            visited.add(value)
            value = graph.aliases.get(value, value)
        return present.get(value, ())

    results = {
        origin.name: tuple(dict.fromkeys(node for value in origin.results for node in nodes(value)))
        for origin in reversed(graph.sources)  # the first one keeps a name that two have
        if origin.name
    }
    return {**results, **{value: nodes(value) for value in graph.aliases}, **present}


def with_aliases(graph: Graph, before: Graph) -> Graph:
    """``graph``, which passes made from ``before``, with the names that were known there.

    Fusion keeps the last name: a value that is gone is now part of its first reader that is left.
    A value whose elements were only moved stands for the one that they come from.
    """
    if graph is before:
        return graph
    present = {node.name for node in graph.compute_nodes()}
    heirs: dict[str, str] = {}
    for node in reversed(before.compute_nodes()):
        readers = (heirs[user.name] for user in before.users[node])
        heirs[node.name] = node.name if node.name in present else next(filter(None, readers), "")
    holders: dict[str, str] = {}
    for node in before.compute_nodes():
        moved = node.operands[0].name if node.operands and node.has(Trait.MOVES) else ""
        is_moved = moved in holders and node.name not in present
        holders[node.name] = holders[moved] if is_moved else heirs[node.name]
    gone = {name: now for name, now in holders.items() if now != name}
    return replace(graph, sources=before.sources, aliases={**before.aliases, **gone})
