"""Inputs whose memory becomes an output: caches that grow by rows, in place.

The caller's array has a *capacity* of rows along an axis, of which the input has the first ones and
the output some more.  New rows are computed where they belong, and nothing else is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quantglow.concise import Concise
from quantglow.errors import BackendError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Input, Node
from quantglow.instr.copy_elision import source_of
from quantglow.instr.program import Buffer, BufferKind, View
from quantglow.instr.strides import dense_strides
from quantglow.ops import Concat, Reshape, Scatter
from quantglow.symbolic.shapes import surely_equal
from quantglow.types import TensorType


@dataclass(frozen=True)
class Donation:
    """An input, the output that takes its memory, and its capacity of rows along an axis."""

    input: str
    output: str
    axis: int
    capacity: int


@dataclass(frozen=True, eq=False, repr=False)
class State(Concise):
    """The views of a donation: what is ``given``, and the ``result``; ``places`` has the nodes that
    are computed in it."""

    input: Node
    given: View
    result: View
    places: Mapping[Node, View]


def state_of(graph: Graph, donation: Donation, slack_nbytes: int) -> State:
    """The state of a donation.  Raises ``BackendError`` where rows are not only added."""
    given = next(node for node in graph.inputs if node.name == donation.input)
    result = dict(graph.outputs)[donation.output]
    axis, shape = donation.axis, given.type.shape
    whole = given.type.with_shape((*shape[:axis], donation.capacity, *shape[axis + 1 :]))
    buffer = Buffer(given.name, BufferKind.STATE, whole.nbytes + slack_nbytes)
    full = dense_view(buffer, whole)
    starts = (0,) * len(shape)
    first, after = full.sub(starts, shape), full.sub(starts, result.type.shape)
    places = _places(graph, given, result, after, axis)
    return State(given, first, after, places)


def _places(graph: Graph, given: Input, result: Node, after: View, axis: int) -> dict[Node, View]:
    if 0 in given.type.shape:
        return {}  # the first rows are copied
    match source_of(result):
        case Concat() as joined if joined is result and joined.axis == axis:
            if joined.parts[0] is given and joined.parts.count(given) == 1:
                return {joined: after}
        case Scatter() as written if source_of(written.x) is given:
            inside = after.reshaped(written.type.shape)
            same = surely_equal(result.type.shape, given.type.shape)
            if inside is not None and same and _is_only_reader(graph, written, given):
                return {written: inside}
    raise BackendError(f"{result.name!r} is not {given.name!r} with rows added")


def _is_only_reader(graph: Graph, written: Scatter, given: Input) -> bool:
    """Whether nobody else sees the input after it was written to."""
    chain = {given, written.x}
    readers = [node for node in graph.nodes if chain.intersection(node.operands)]
    aliases = [node for node in readers if isinstance(node, Reshape) and node is written.x]
    outputs = {node for _, node in graph.outputs}
    return len(readers) == len(aliases) + 1 and not outputs & chain


def dense_view(buffer: Buffer, kind: TensorType) -> View:
    """The contiguous view of a whole buffer."""
    return View(buffer, kind, dense_strides(kind.shape))
