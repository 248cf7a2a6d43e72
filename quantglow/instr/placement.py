"""Placement: which values are computed right inside a larger one.

A part of a Concat, and the operand of a Pad, needs no buffer of its own: its *home* is a box
inside the container.  Homes nest (a Concat may itself live inside a Pad).
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.ops import Concat, Expand, Pad, Reshape, Slice, Transpose

ALIASES = (Input, Constant, Reshape, Slice, Transpose, Expand)
"""Nodes whose value is a view of another's buffer, or lies with the caller: never moved."""


@dataclass(frozen=True)
class Home:
    """The box of ``container`` that begins at ``starts``."""

    container: Node
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where values live.

    ``homes``: values computed inside a container.  ``wider_pads``: Pads that are a box of
    another Pad of the same value.  ``direct_outputs``: values computed in an output buffer, with
    the name of that output.
    """

    homes: dict[Node, Home]
    wider_pads: dict[Node, Pad]
    direct_outputs: dict[Node, str]


def place(graph: Graph) -> Placement:
    """Decide homes from the outputs backwards, so that a container knows its own home first."""
    wider = _wider_pads(graph)
    direct = _direct_outputs(graph, wider)
    homes: dict[Node, Home] = {}

    def movable(node: Node) -> bool:
        """Whether a value is computed (not aliased) and has no place yet."""
        placed = node in homes or node in direct or node in wider
        return not isinstance(node, ALIASES) and not placed and node.type.size > 0

    for node in reversed(graph.nodes):
        if isinstance(node, Concat):
            for part, home in _concat_homes(node):
                if movable(part):
                    homes[part] = home
        elif isinstance(node, Pad) and node not in wider and movable(node.x):
            homes[node.x] = Home(node, node.before)
    return Placement(homes, wider, direct)


def _concat_homes(node: Concat) -> list[tuple[Node, Home]]:
    homes, position = [], 0
    for part in node.parts:
        starts = tuple(position if i == node.axis else 0 for i in range(node.type.rank))
        homes.append((part, Home(node, starts)))
        position += part.type.shape[node.axis]
    return homes


def _wider_pads(graph: Graph) -> dict[Node, Pad]:
    """Pads of one value with one fill: all lie inside the widest, where there is a widest."""
    groups: dict[tuple[Node, str], list[Pad]] = {}
    for node in graph.nodes:
        if isinstance(node, Pad):
            # The text of the fill tells -0.0 from 0.0.
            groups.setdefault((node.x, repr(node.fill)), []).append(node)
    found: dict[Node, Pad] = {}
    for pads in groups.values():
        widest = max(pads, key=lambda p: p.type.size)
        if all(_covers(widest, pad) for pad in pads):
            found.update((pad, widest) for pad in pads if pad is not widest)
    return found


def _covers(outer: Pad, inner: Pad) -> bool:
    return all(
        o >= i
        for o, i in zip((*outer.before, *outer.after), (*inner.before, *inner.after), strict=True)
    )


def _direct_outputs(graph: Graph, wider: dict[Node, Pad]) -> dict[Node, str]:
    """Computed outputs go straight to the caller's buffer; a value output twice is copied."""
    found: dict[Node, str] = {}
    for name, node in graph.outputs:
        if not isinstance(node, ALIASES) and node not in wider and node.type.size:
            found.setdefault(node, name)
    return found
