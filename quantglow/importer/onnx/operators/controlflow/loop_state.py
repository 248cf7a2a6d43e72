"""State of a Loop: trips, carried values, and values that each trip appends to.

An ONNX Loop runs by a number of trips, a condition, or both.  Its carried values change, or never
do, or have a first value that nobody reads, or grow: each trip appends rows to their end.  The rows
of all trips are stacked, then joined to the first value.  The body sees the last rows of the value
only, as many as it reads: those are carried from trip to trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.context import Call, Unsupported
from quantglow.importer.onnx.nodes.values import KnownSizes, KnownValue, Value, value_shape
from quantglow.importer.onnx.operators.controlflow.subgraphs import (
    ImportBody,
    copied_names,
    names_read,
    names_read_by,
    original,
    originals,
    rerank,
)
from quantglow.importer.onnx.operators.tensor.shape import normal
from quantglow.importer.onnx.operators.tensor.slicing import SliceRange, along_span
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.expression import Expr, arg
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.loop import ENDLESS
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.shape import Concat, Expand, Reshape, Transpose
from quantglow.ir.symbolic.size import (
    Dim,
    FixedShape,
    Shape,
    Size,
    decide,
    decide_in,
    decide_max,
    integer,
    is_free,
    surely_equal,
)
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.classes import cached_property

HOLDS = KnownValue("holds", np.array(True))
"""The condition as a body sees it: a trip runs only where it holds."""

Condition = tuple[Node, Node]
"""A condition before the first trip, and before the next one."""

TO_THE_END = 2**31 - 1
"""Least end of a Slice that takes all rows, however many there are."""


def most_trips(call: Call) -> Dim:
    """The known number of trips, 0 for negative ones, or ``ENDLESS``."""
    if not (call.has(0) and call.is_known(0)):
        return ENDLESS
    return decide_max(0, integer(call.array(0, "trip count").reshape(-1)[0]))


def by_count(call: Call, number: Node, following: Node) -> Iterator[Condition]:
    """Fewer trips were made than a value says that is computed."""
    if call.has(0) and not call.is_known(0):
        limit = _scalar(call, call.tensor(0), DType.I64)
        less = fn("lt", arg(0), arg(1))
        yield (
            compute(call, "some", less, number, limit, out=DType.BOOL),
            compute(call, "more", less, following, limit, out=DType.BOOL),
        )


def by_value(call: Call, holds: Node) -> Iterator[Condition]:
    """The condition of the model, unless it is always true."""
    first = call.has(1) and not _is_true(call)
    if first or not (isinstance(holds, Constant) and bool(holds.value.all())):
        true = Constant(name=call.derive("true"), value=np.array(True))
        before = call.tensor(1) if first else true
        yield _scalar(call, before, DType.BOOL), _scalar(call, holds, DType.BOOL)


def _scalar(call: Call, x: Node, dtype: DType) -> Node:
    if x.type.dtype is not dtype or not x.type.is_single:
        raise Unsupported(f"{x.name!r} is {x.type}, no scalar of {dtype}")
    return x if not x.type.shape else Reshape(name=call.derive("scalar"), x=x, shape=())


def conjunction(call: Call, values: Sequence[Node]) -> Node:
    """Whether all conditions hold."""
    if len(values) == 1:
        return values[0]
    return compute(call, "both", fn("and", arg(0), arg(1)), *values, out=DType.BOOL)


def compute(
    call: Call, tag: str, expression: Expr, *args: Node, out: DType = DType.I64
) -> Elementwise:
    element = ElementType(out)
    return Elementwise(name=call.derive(tag), args=args, expression=expression, out=element)


def surely_runs(call: Call) -> bool:
    """Whether there is a first trip, whatever the values at run time are."""
    counted = not call.has(0) or (call.is_known(0) and decide(most_trips(call) > 0))
    return counted and (not call.has(1) or _is_true(call))


def _is_true(call: Call) -> bool:
    """Whether the first condition is known to hold."""
    return call.is_known(1) and bool(call.array(1, "condition").all())


@dataclass(frozen=True)
class Growing:
    """Carried value ``number`` of a Loop: ``value = Concat(value, rows)`` along ``axis``.

    ``window_rows``: how many of the value's last rows a trip reads; ``dims``: the shape of the
    first one.
    """

    call: Call
    number: int
    axis: int
    window_rows: int
    dims: Shape

    @property
    def first_name(self) -> str:
        """The name of the first value."""
        return str(self.call.proto.input[2 + self.number])

    def window(self, x: Node) -> Node:
        """The last rows of a value, those that the next trip reads."""
        rows = x.type.shape[self.axis]
        if decide(rows == self.window_rows):
            return x
        return along_span(
            self.call.derive("last"),
            x,
            self.axis,
            SliceRange(rows - self.window_rows, self.window_rows),
        )

    def new_rows(self, x: Node) -> Node:
        """The rows that a trip appended to a window."""
        rows = x.type.shape[self.axis]
        if not self.window_rows:
            return x
        return along_span(
            self.call.derive("new"),
            x,
            self.axis,
            SliceRange(self.window_rows, rows - self.window_rows),
        )

    def nothing(self, name: str) -> KnownValue:
        """The value as a body sees it that reads no row: it has none."""
        first = self.call.scope.values[self.first_name]
        kind = first.array.dtype if isinstance(first, KnownValue) else self.first().type.dtype.numpy
        dims = [1 if is_free(size) else size for size in self.dims]
        dims[self.axis] = 0
        return KnownValue(name, np.zeros(dims, kind))

    def first(self) -> Node:
        """The value before the first trip, which has rows."""
        return self.call.scope.tensor(self.first_name)

    def join(self, stacked: Node) -> Node:
        """The value after the last trip, given the rows of all trips."""
        scope, axis, rank = self.call.scope, self.axis, len(self.dims)
        name = str(self.call.proto.output[self.number])
        perm = (*range(1, axis + 1), 0, *range(axis + 1, rank + 1))
        if axis:
            stacked = Transpose(name=self.call.derive("in-order"), x=stacked, perm=perm)
        dims = stacked.type.shape
        shape = (*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :])
        if decide_in(0, self.dims):
            return Reshape(name=scope.claim(name), x=stacked, shape=shape)
        rows = Reshape(name=self.call.derive("all-rows"), x=stacked, shape=shape)
        return Concat(name=scope.claim(name), parts=(self.first(), rows), axis=axis)


def growing_values(call: Call, import_body: ImportBody) -> tuple[Growing, ...]:
    """The carried values to which each trip appends rows, of which the body reads the last ones
    only.  There must be as many before the first trip, and the number of trips must be known."""
    trips = most_trips(call)
    if not (decide(trips > 0) and decide(trips < ENDLESS)):
        return ()
    return tuple(_LoopBody(call, import_body).growing())


@dataclass(frozen=True, eq=False)
class _LoopBody:
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
    def varying_names(self) -> set[str]:
        """Names of the values that may differ from trip to trip."""
        names = {str(name) for node in self.graph.node for name in node.output if name}
        names.update(str(value.name) for value in self.graph.input)
        return names - {str(node.output[0]) for node in self.constants}

    def growing(self) -> Iterator[Growing]:
        ends, makers = originals(self.graph), {n: x for x in self.graph.node for n in x.output}
        for number, value in enumerate(self.graph.input[2:]):
            end = ends[1 + number]
            maker, is_read_once = makers.get(end), ends.count(end) == 1 and value.name not in ends
            if maker is not None and is_read_once and self.is_appended(maker, value.name):
                grows = self.of(number, value.name, maker)
                if grows is not None:
                    yield grows

    def is_appended(self, maker: onnx.NodeProto, name: str) -> bool:
        """Whether a node joins something to the end of a value."""
        parts = [original(part, self.copies) for part in maker.input]
        return maker.op_type == "Concat" and parts[0] == name and parts.count(name) == 1

    def of(self, number: int, name: str, maker: onnx.NodeProto) -> Growing | None:
        """A value that a node appends to; None where the body reads other rows than the last."""
        dims = value_shape(self.call.scope.values[self.call.proto.input[2 + number]])
        axis = Call(maker, self.call.scope).integer("axis", 1)
        if dims is None or not -len(dims) <= axis < len(dims):
            return None
        (axis,) = normal((axis,), len(dims))
        before = self.rows_read(name, axis, len(dims), maker)
        after = self.rows_read(original(maker.output[0], self.copies), axis, len(dims), maker)
        if before is None or after is None:
            return None
        window_rows = max(before, after - 1)  # a trip appends one row at least
        if window_rows and decide(window_rows > dims[axis]):
            return None
        return Growing(self.call, number, axis, window_rows, dims)

    def rows_read(self, name: str, axis: int, rank: int, maker: onnx.NodeProto) -> int | None:
        """Number of last rows that others than its maker read of a value; None for any others."""
        most = 0
        for node in self.graph.node:
            reads = [original(read, self.copies) for read in names_read_by(node)]
            if name not in reads or node.op_type == "Identity" or node.output[0] == maker.output[0]:
                continue
            rows = self.last_rows(node, axis, rank) if reads.index(name) == 0 else None
            if rows is None or reads.count(name) > 1:
                return None
            most = max(most, rows)
        return most

    def last_rows(self, node: onnx.NodeProto, axis: int, rank: int) -> int | None:
        """Number of last rows of its first operand that a node needs; None if any."""
        read = _READS.get(node.op_type)
        settings = {str(name) for name in node.input[1:]}
        if read is None or node.domain not in ("", "ai.onnx") or settings & self.varying_names:
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
    if axis not in axes or (call.has(1) and isinstance(call.value(1), KnownSizes)):
        return None
    at = axes.index(axis)
    start, end = starts[at], ends[at]
    if decide(start >= 0):
        return None
    if decide(end >= 0) and (decide(end < TO_THE_END) or decide(steps[at] < 0)):
        return None
    return int(decide_max(-start, -end))


def _rows_of_gather(call: Call, axis: int, rank: int) -> int | None:
    (chosen,) = normal((call.integer("axis", 0),), rank)
    indices = call.array(1, "indices").reshape(-1)
    if (
        chosen != axis
        or not indices.size
        or isinstance(call.value(1), KnownSizes)
        or max(indices) >= 0
    ):
        return None
    return int(-min(indices))


_READS: dict[str, Callable[[Call, int, int], int | None]] = {
    "Gather": _rows_of_gather,
    "Slice": _rows_of_slice,
}
"""Operators that may read last rows only: how many of an axis."""


@dataclass(frozen=True)
class CarriedState:
    """The carried values of a Loop by their numbers: all of them, those that stay what they were
    (``fixed``, each with its value), those whose first value the body does not read, and those to
    which it appends rows (``Growing``)."""

    call: Call
    count: int
    fixed: dict[int, Value]
    unread: frozenset[int]
    growing: dict[int, Growing]

    @staticmethod
    def of(call: Call, growing: Sequence[Growing] = ()) -> CarriedState:
        body, operands = call.attributes["body"], call.proto.input[2:]
        count = len(operands)
        inner, after = body.input[2:], originals(body)
        fixed = {
            number: call.scope.values[name]
            for number, name in enumerate(operands)
            if after[1 + number] == inner[number].name
        }
        read = {*names_read(body), *(output.name for output in body.output)}
        unread = frozenset(n for n in range(count) if inner[n].name not in read)
        return CarriedState(call, count, fixed, unread, {value.number: value for value in growing})

    @property
    def changing(self) -> list[int]:
        """The values that the loop hands from trip to trip: those that something reads."""
        outputs = self.call.proto.output
        used = {n for n, name in enumerate(outputs[: self.count]) if name in self.call.scope.used}
        stacked = {n for n, value in self.growing.items() if not value.window_rows}
        left_out = {*self.fixed, *(self.unread - used), *stacked}
        return [n for n in range(self.count) if n not in left_out]

    def first(self, number: int, shape: FixedShape) -> Node:
        """A changing value before the first trip; one of one element in this shape, if that has
        more dimensions."""
        grows = self.growing.get(number)
        if grows is not None:
            return grows.window(grows.first())
        return rerank(self.call, self.call.scope.tensor(self.call.proto.input[2 + number]), shape)

    def next_values(self, outputs: Sequence[Node]) -> list[Node]:
        """The changing values of the next trip, then the values that each trip stacks, with those
        that it appends last; given all outputs of the body but the condition."""
        windows = {
            n: value.window(outputs[n]) for n, value in self.growing.items() if value.window_rows
        }
        rows = [value.new_rows(outputs[n]) for n, value in self.growing.items()]
        changing = [windows.get(number, outputs[number]) for number in self.changing]
        return [*changing, *outputs[self.count :], *rows]

    def changing_outputs(self) -> list[str]:
        """The outputs of the ONNX node that are results of the loop, "" for those it does not have,
        and for values that grow."""
        names = [str(name) for name in self.call.proto.output]
        names += [""] * (len(self.call.attributes["body"].output) - 1 - len(names))
        changing = ("" if number in self.growing else names[number] for number in self.changing)
        return [*changing, *names[self.count :]]

    def growing_outputs(self) -> Iterator[tuple[str, Growing]]:
        """The values that grow, each with the name of its output, "" where there is none."""
        names = self.call.proto.output
        for number, value in self.growing.items():
            yield str(names[number]) if number < len(names) else "", value

    @property
    def unchanging(self) -> dict[int, Value]:
        """Values that the body reads in place of those that no trip hands to the next."""
        inner = self.call.attributes["body"].input[2:]
        rows = {n: x.nothing(inner[n].name) for n, x in self.growing.items() if not x.window_rows}
        return {**self.fixed, **rows}

    def results(self) -> Iterator[tuple[str, Value]]:
        """The outputs of the ONNX node that are fixed values."""
        for number, name in enumerate(self.call.proto.output[: self.count]):
            if number in self.fixed and name:
                yield str(name), self.fixed[number]


def zeros_node(call: Call, kind: TensorType) -> Node:
    """A first value for what the first trip replaces unread."""
    shape = tuple(1 if isinstance(size, Size) else size for size in kind.shape)
    zeros = Constant(name=call.derive("unread"), value=np.zeros(shape, kind.dtype.numpy))
    if surely_equal(shape, kind.shape):
        return zeros
    return Expand(name=call.derive("unread"), x=zeros, shape=kind.shape)
