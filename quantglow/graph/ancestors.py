"""The nodes that others are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quantglow.graph.node import Node


def ancestors(
    ends: Iterable[Node], read: Mapping[Node, tuple[Node, ...]] | None = None
) -> set[Node]:
    """The nodes and all nodes they are computed from; ``read``: node -> the operands that count, if
    these are not all.
    """
    waiting, counted = list(ends), read or {}
    found = set(waiting)
    while waiting:
        node = waiting.pop()
        new = set(counted.get(node, node.operands)) - found
        found |= new
        waiting.extend(new)
    return found
