"""Copy elision: values are computed right inside the larger one that contains them.

A part of a Concat, and the operand of a Pad, needs no buffer of its own: its *home* is a box
inside the container.  Homes nest (a Concat may itself live inside a Pad).  Reshapes between a value
and its container are looked through where the box allows it: ``source_of``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.graph.traits import Trait
from quantglow.instr.strides import dense_strides, reshaped_strides
from quantglow.ops import Concat, Pad, Reshape


@dataclass(frozen=True)
class Home:
    """The box of ``container`` that begins at ``starts``; the value may be a reshape of it."""

    container: Node
    starts: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """The places of values.

    ``homes``: values computed inside a container.  ``wider_pads``: Pads that are a box of
    another Pad of the same value.  ``direct_outputs``: values computed in an output buffer, with
    the position of that output.
    """

    homes: dict[Node, Home]
    wider_pads: dict[Node, Pad]
    direct_outputs: dict[Node, int]

    def without_outputs(self, graph: Graph, names: set[str]) -> Placement:
        """The same without the places of some outputs, which have others."""
        if not names:
            return self
        direct = self.direct_outputs.items()
        kept = {node: at for node, at in direct if graph.outputs[at][0] not in names}
        return replace(self, direct_outputs=kept)


def source_of(node: Node) -> Node:
    """The value that ``node`` is a reshape of."""
    while isinstance(node, Reshape):
        node = node.x
    return node


def is_alias(node: Node) -> bool:
    """Whether the value is a view of another's buffer, or lies with the caller: never moved."""
    return isinstance(node, Input | Constant) or node.has(Trait.VIEW)


def place(graph: Graph) -> Placement:
    """Decide homes from the outputs backwards, so that a container knows its own home first."""
    wider = _wider_pads(graph)
    direct = _direct_outputs(graph, wider)
    homes: dict[Node, Home] = {}

    def settle(part: Node, home: Home) -> None:
        """Give the source of ``part`` its home if it is computed (not aliased) and has none."""
        source = source_of(part)
        placed = source in homes or source in direct or source in wider
        if is_alias(source) or placed or not source.type.size:
            return
        if _fits(part, _strides(home.container, homes)):
            homes[source] = home

    for node in reversed(graph.nodes):
        if isinstance(node, Concat):
            for part, home in _concat_homes(node):
                settle(part, home)
        elif isinstance(node, Pad) and node not in wider:
            settle(node.x, Home(node, node.before, node.x.type.shape))
    return Placement(homes, wider, direct)


def _strides(node: Node, homes: dict[Node, Home]) -> tuple[int, ...]:
    """Strides of a container, given its own home."""
    home = homes.get(node)
    if home is None:
        return dense_strides(node.type.shape)
    found = reshaped_strides(home.shape, _strides(home.container, homes), node.type.shape)
    assert found is not None, "a home holds its value"
    return found


def _fits(part: Node, strides: tuple[int, ...]) -> bool:
    """Whether each value from ``part`` up to its source is a view of the box with dense rows."""
    while isinstance(part, Reshape):
        inner = reshaped_strides(part.type.shape, strides, part.x.type.shape)
        if inner is None or (part.x.type.shape and part.x.type.shape[-1] > 1 and inner[-1] != 1):
            return False
        part, strides = part.x, inner
    return True


def _concat_homes(node: Concat) -> list[tuple[Node, Home]]:
    homes, position = [], 0
    for part in node.parts:
        starts = tuple(position if i == node.axis else 0 for i in range(node.type.rank))
        homes.append((part, Home(node, starts, part.type.shape)))
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


def _direct_outputs(graph: Graph, wider: dict[Node, Pad]) -> dict[Node, int]:
    """Computed outputs go straight to the caller's buffer; a value output twice is copied."""
    found: dict[Node, int] = {}
    for position, (_, node) in enumerate(graph.outputs):
        source = source_of(node)
        if not is_alias(source) and source not in wider and source.type.size:
            found.setdefault(source, position)
    return found
