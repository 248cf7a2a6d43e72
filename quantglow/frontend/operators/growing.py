"""Values that a Loop carries and to whose end each trip appends rows.

The rows of all trips are stacked, then joined to the first value.  The body sees the last rows of
the value only, as many as it reads: those are carried from trip to trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.frontend.nodes.values import Known, Sizes, shape_of
from quantglow.frontend.operators.body_names import (
    copied_names,
    names_read_by,
    original,
    originals,
)
from quantglow.frontend.operators.branches import ImportBody
from quantglow.frontend.operators.loop_trips import most_trips
from quantglow.frontend.operators.shape import normal
from quantglow.frontend.operators.slicing import Span, along_span
from quantglow.graph.node import Node
from quantglow.lazy import cached_property
from quantglow.ops.loop import ENDLESS
from quantglow.ops.shape import Concat, Reshape, Transpose
from quantglow.symbolic.size import is_free

TO_THE_END = 2**31 - 1
"""Least end of a Slice that takes all rows, however many there are."""


@dataclass(frozen=True)
class Growing:
    """Carried value ``number`` of a Loop: ``value = Concat(value, rows)`` along ``axis``.

    ``kept``: how many of the value's last rows a trip reads; ``dims``: the shape of the first one.
    """

    call: Call
    number: int
    axis: int
    kept: int
    dims: tuple[int, ...]

    @property
    def given(self) -> str:
        """The name of the first value."""
        return str(self.call.proto.input[2 + self.number])

    def window(self, x: Node) -> Node:
        """The last rows of a value, those that the next trip reads."""
        rows = x.type.shape[self.axis]
        if rows == self.kept:
            return x
        return along_span(
            self.call.derived("last"), x, self.axis, Span(rows - self.kept, self.kept)
        )

    def appended(self, x: Node) -> Node:
        """The rows that a trip appended to a window."""
        rows = x.type.shape[self.axis]
        if not self.kept:
            return x
        return along_span(self.call.derived("new"), x, self.axis, Span(self.kept, rows - self.kept))

    def nothing(self, name: str) -> Known:
        """The value as a body sees it that reads no row: it has none."""
        first = self.call.scope.values[self.given]
        kind = first.array.dtype if isinstance(first, Known) else self.first().type.dtype.numpy
        dims = [1 if is_free(size) else size for size in self.dims]
        dims[self.axis] = 0
        return Known(name, np.zeros(dims, kind))

    def first(self) -> Node:
        """The value before the first trip, which has rows."""
        return self.call.scope.tensor(self.given)

    def joined(self, stacked: Node) -> Node:
        """The value after the last trip, given the rows of all trips."""
        scope, axis, rank = self.call.scope, self.axis, len(self.dims)
        name = str(self.call.proto.output[self.number])
        perm = (*range(1, axis + 1), 0, *range(axis + 1, rank + 1))
        if axis:
            stacked = Transpose(name=self.call.derived("in-order"), x=stacked, perm=perm)
        dims = stacked.type.shape
        shape = (*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :])
        if 0 in self.dims:
            return Reshape(name=scope.claim(name), x=stacked, shape=shape)
        rows = Reshape(name=self.call.derived("all-rows"), x=stacked, shape=shape)
        return Concat(name=scope.claim(name), parts=(self.first(), rows), axis=axis)


def growing_values(call: Call, import_body: ImportBody) -> tuple[Growing, ...]:
    """The carried values to which each trip appends rows, of which the body reads the last ones
    only.  There must be as many before the first trip, and the number of trips must be known."""
    if not 0 < most_trips(call) < ENDLESS:
        return ()
    return tuple(_Body(call, import_body).growing())


@dataclass(frozen=True, eq=False)
class _Body:
    """The body of a Loop that is not imported yet."""

    call: Call
    import_body: ImportBody

    @property
    def graph(self) -> onnx.GraphProto:
        graph: onnx.GraphProto = self.call.attributes["body"]
        return graph

    @cached_property
    def copies(self) -> dict[str, str]:
        return copied_names(self.graph)

    @cached_property
    def constants(self) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if node.op_type == "Constant"]

    @cached_property
    def computed(self) -> set[str]:
        """Names of the values that may differ from trip to trip."""
        made = {str(name) for node in self.graph.node for name in node.output if name}
        made.update(str(value.name) for value in self.graph.input)
        return made - {str(node.output[0]) for node in self.constants}

    def growing(self) -> Iterator[Growing]:
        ends, makers = originals(self.graph), {n: x for x in self.graph.node for n in x.output}
        for number, value in enumerate(self.graph.input[2:]):
            end = ends[1 + number]
            maker, is_read_once = makers.get(end), ends.count(end) == 1 and value.name not in ends
            if maker is not None and is_read_once and self.is_appended(maker, value.name):
                found = self.of(number, value.name, maker)
                if found is not None:
                    yield found

    def is_appended(self, maker: onnx.NodeProto, name: str) -> bool:
        """Whether a node joins something to the end of a value."""
        parts = [original(part, self.copies) for part in maker.input]
        return maker.op_type == "Concat" and parts[0] == name and parts.count(name) == 1

    def of(self, number: int, name: str, maker: onnx.NodeProto) -> Growing | None:
        """A value that a node appends to; None where the body reads other rows than the last."""
        dims = shape_of(self.call.scope.values[self.call.proto.input[2 + number]])
        axis = Call(maker, self.call.scope).integer("axis", 1)
        if dims is None or not -len(dims) <= axis < len(dims):
            return None
        (axis,) = normal((axis,), len(dims))
        before = self.rows_read(name, axis, len(dims), maker)
        after = self.rows_read(original(maker.output[0], self.copies), axis, len(dims), maker)
        if before is None or after is None:
            return None
        kept = max(before, after - 1)  # a trip appends one row at least
        if kept and kept > dims[axis]:
            return None
        return Growing(self.call, number, axis, kept, dims)

    def rows_read(self, name: str, axis: int, rank: int, maker: onnx.NodeProto) -> int | None:
        """How many last rows of a value are read by others than its maker; None for any others."""
        found = 0
        for node in self.graph.node:
            reads = [original(read, self.copies) for read in names_read_by(node)]
            if name not in reads or node.op_type == "Identity" or node.output[0] == maker.output[0]:
                continue
            rows = self.last_rows(node, axis, rank) if reads.index(name) == 0 else None
            if rows is None or reads.count(name) > 1:
                return None
            found = max(found, rows)
        return found

    def last_rows(self, node: onnx.NodeProto, axis: int, rank: int) -> int | None:
        """How many rows of its first operand a node needs, counted from the last; None if any."""
        read = _READS.get(node.op_type)
        settings = {str(name) for name in node.input[1:]}
        if read is None or node.domain not in ("", "ai.onnx") or settings & self.computed:
            return None
        self.import_constants(settings)
        try:
            return read(Call(node, self.call.scope), axis, rank)
        except (Unsupported, KeyError, ValueError):
            return None

    def import_constants(self, names: set[str]) -> None:
        """Bind those of some names that are constants of the body."""
        nodes = [node for node in self.constants if node.output[0] in names]
        tensors = [tensor for tensor in self.graph.initializer if tensor.name in names]
        ends = [onnx.ValueInfoProto(name=node.output[0]) for node in nodes]
        part = onnx.GraphProto(node=nodes, initializer=tensors, output=ends)
        self.import_body(part, self.call.scope)


def _rows_of_slice(call: Call, axis: int, rank: int) -> int | None:
    starts, ends = call.parameter("starts", 1) or (), call.parameter("ends", 2) or ()
    axes = normal(call.parameter("axes", 3) or tuple(range(len(starts))), rank)
    steps = call.parameter("steps", 4) or (1,) * len(starts)
    if axis not in axes or (call.has(1) and isinstance(call.value(1), Sizes)):
        return None
    at = axes.index(axis)
    start, end, step = starts[at], ends[at], steps[at]
    if start >= 0 or (end >= 0 and (end < TO_THE_END or step < 0)):
        return None
    return max(-start, -end)


def _rows_of_gather(call: Call, axis: int, rank: int) -> int | None:
    (chosen,) = normal((call.integer("axis", 0),), rank)
    indices = call.array(1, "indices").reshape(-1)
    if chosen != axis or not indices.size or isinstance(call.value(1), Sizes) or max(indices) >= 0:
        return None
    return int(-min(indices))


_READS: dict[str, Callable[[Call, int, int], int | None]] = {
    "Gather": _rows_of_gather,
    "Slice": _rows_of_slice,
}
"""Operators that may read last rows only: how many of an axis."""
