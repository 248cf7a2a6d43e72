"""Unique names for new nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantglow.graph.graph import Graph


@dataclass
class Names:
    """The names of a graph's nodes and of the nodes made since."""

    taken: set[str] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph) -> Names:
        """Names that new nodes of this graph must not have."""
        return Names(set(graph.names))

    def fresh(self, name: str) -> str:
        """``name``, or if it is taken ``name_2``, ``name_3``, …; the result is taken from
        now on.
        """
        candidate, number = name, 2
        while candidate in self.taken:
            candidate, number = f"{name}_{number}", number + 1
        self.taken.add(candidate)
        return candidate
