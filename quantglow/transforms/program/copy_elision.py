"""Copy elision: values computed inside larger ones, and inputs updated in place.

A part of a Concat, and the operand of a Pad, needs no buffer of its own: its *home* is a box
inside the container.  Homes nest (a Concat may itself live inside a Pad).  Reshapes between a value
and its container are looked through where the box allows it: ``view_source``.

The memory of an input may become an output: a cache that grows by rows.  The caller's array has a
*capacity* of rows along an axis, of which the input has the first ones and the output some more.
New rows are computed where they belong, and nothing else is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Concat, Pad, Reshape, Scatter
from quantglow.ir.program.program import Buffer, BufferKind, View
from quantglow.ir.program.strides import dense_strides, reshape_strides
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal, surely_equal
from quantglow.ir.types import TensorType
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError


@dataclass(frozen=True)
class Home:
    """The box of ``container`` that begins at ``starts``; the value may be a reshape of it."""

    container: Node
    starts: Shape
    shape: Shape

    def is_at(self, container: Node, starts: Shape, shape: Shape) -> bool:
        """Whether this is the box of a shape at a place of a container."""
        is_there = self.container is container and decide_equal(self.starts, starts)
        return is_there and decide_equal(self.shape, shape)


@dataclass(frozen=True)
class ValuePlaces:
    """The places of values.

    ``homes``: values computed inside a container.  ``wider_pads``: Pads that are a box of
    another Pad of the same value.  ``direct_outputs``: values computed in an output buffer, with
    the position of that output.
    """

    homes: dict[Node, Home]
    wider_pads: dict[Node, Pad]
    direct_outputs: dict[Node, int]

    def without_outputs(self, graph: Graph, names: set[str]) -> ValuePlaces:
        """This placement without the places of some outputs, which have others."""
        if not names:
            return self
        entries = self.direct_outputs.items()
        direct_outputs = {node: at for node, at in entries if graph.outputs[at][0] not in names}
        return replace(self, direct_outputs=direct_outputs)


def view_source(node: Node) -> Node:
    """The value that ``node`` is a reshape of."""
    while isinstance(node, Reshape):
        node = node.x
    return node


def is_alias(node: Node) -> bool:
    """Whether the value is a view of another's buffer, or lies with the caller: never moved."""
    return isinstance(node, Input | Constant) or node.has(Trait.VIEW)


def place(graph: Graph) -> ValuePlaces:
    """Decide homes from the outputs backwards, so that a container knows its own home first."""
    wider = _wider_pads(graph)
    direct = _direct_outputs(graph, wider)
    homes: dict[Node, Home] = {}

    def settle(part: Node, home: Home) -> None:
        """Give the source of ``part`` its home if it is computed (not aliased) and has none."""
        source = view_source(part)
        placed = source in homes or source in direct or source in wider
        if is_alias(source) or placed or source.type.is_empty:
            return
        if _fits(part, _strides(home.container, homes)):
            homes[source] = home

    for node in reversed(graph.nodes):
        if isinstance(node, Concat):
            for part, home in _concat_homes(node):
                settle(part, home)
        elif isinstance(node, Pad) and node not in wider:
            settle(node.x, Home(node, node.before, node.x.type.shape))
    return ValuePlaces(homes, wider, direct)


def _strides(node: Node, homes: dict[Node, Home]) -> Shape:
    """Strides of a container, given its own home."""
    home = homes.get(node)
    if home is None:
        return dense_strides(node.type.shape)
    strides = reshape_strides(home.shape, _strides(home.container, homes), node.type.shape)
    assert strides is not None, "a home holds its value"
    return strides


def _fits(part: Node, strides: Shape) -> bool:
    """Whether each value from ``part`` up to its source is a view of the box with dense rows."""
    while isinstance(part, Reshape):
        inner = reshape_strides(part.type.shape, strides, part.x.type.shape)
        if inner is None:
            return False
        shape = part.x.type.shape
        if shape and decide(shape[-1] > 1) and decide(inner[-1] != 1):
            return False
        part, strides = part.x, inner
    return True


def _concat_homes(node: Concat) -> list[tuple[Node, Home]]:
    homes: list[tuple[Node, Home]] = []
    position: Dim = 0
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
    wider: dict[Node, Pad] = {}
    for pads in groups.values():
        widest = reduce(_larger, pads)
        if all(_covers(widest, pad) for pad in pads):
            wider.update((pad, widest) for pad in pads if pad is not widest)
    return wider


def _larger(one: Pad, other: Pad) -> Pad:
    return other if decide(other.type.size > one.type.size) else one


def _covers(outer: Pad, inner: Pad) -> bool:
    return all(
        decide(o >= i)
        for o, i in zip((*outer.before, *outer.after), (*inner.before, *inner.after), strict=True)
    )


def _direct_outputs(graph: Graph, wider: dict[Node, Pad]) -> dict[Node, int]:
    """Computed outputs go straight to the caller's buffer; a value output twice is copied."""
    positions: dict[Node, int] = {}
    for position, (_, node) in enumerate(graph.outputs):
        source = view_source(node)
        if not is_alias(source) and source not in wider and not source.type.is_empty:
            positions.setdefault(source, position)
    return positions


@dataclass(frozen=True)
class Donation:
    """An input, the output that takes its memory, and its capacity of rows along an axis."""

    input: str
    output: str
    axis: int
    capacity: Dim


@dataclass(frozen=True, eq=False, repr=False)
class DonatedState(Concise):
    """The views of a donation: the ``initial`` rows, and the ``result``.

    ``places`` has the nodes that are computed in it.
    """

    input: Node
    initial: View
    result: View
    places: Mapping[Node, View]


def donated_state(graph: Graph, donation: Donation, slack_nbytes: int) -> DonatedState:
    """The state of a donation.  Raises ``BackendError`` where rows are not only added."""
    source = next(node for node in graph.inputs if node.name == donation.input)
    result = dict(graph.outputs)[donation.output]
    axis, shape = donation.axis, source.type.shape
    whole = source.type.with_shape((*shape[:axis], donation.capacity, *shape[axis + 1 :]))
    buffer = Buffer(source.name, BufferKind.STATE, whole.nbytes + slack_nbytes)
    full = dense_view(buffer, whole)
    starts = (0,) * len(shape)
    first, after = full.sub(starts, shape), full.sub(starts, result.type.shape)
    places = _places(graph, source, result, after, axis)
    return DonatedState(source, first, after, places)


def _places(graph: Graph, source: Input, result: Node, after: View, axis: int) -> dict[Node, View]:
    if source.type.is_empty:
        return {}  # the first rows are copied
    match view_source(result):
        case Concat() as joined if joined is result and joined.axis == axis:
            if joined.parts[0] is source and joined.parts.count(source) == 1:
                return {joined: after}
        case Scatter() as written if view_source(written.x) is source:
            inside = after.reshaped(written.type.shape)
            same = surely_equal(result.type.shape, source.type.shape)
            if inside is not None and same and _is_only_reader(graph, written, source):
                return {written: inside}
    raise BackendError(f"{result.name!r} is not {source.name!r} with rows added")


def _is_only_reader(graph: Graph, written: Scatter, source: Input) -> bool:
    """Whether nobody else sees the input after it was written to."""
    chain = {source, written.x}
    readers = [node for node in graph.nodes if chain.intersection(node.operands)]
    aliases = [node for node in readers if isinstance(node, Reshape) and node is written.x]
    outputs = {node for _, node in graph.outputs}
    return len(readers) == len(aliases) + 1 and not outputs & chain


def dense_view(buffer: Buffer, kind: TensorType) -> View:
    """The contiguous view of a whole buffer."""
    return View(buffer, kind, dense_strides(kind.shape))
