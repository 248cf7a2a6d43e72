"""Importers of Scan and Loop, whose bodies are imported node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, OfLateShapes, Unsupported
from quantglow.importer.onnx.nodes.values import KnownValue, Value
from quantglow.importer.onnx.operators.controlflow.loop_state import (
    HOLDS,
    CarriedState,
    Growing,
    by_count,
    by_value,
    compute,
    conjunction,
    growing_values,
    most_trips,
    surely_runs,
    zeros_node,
)
from quantglow.importer.onnx.operators.controlflow.subgraphs import ImportBody, close, inner_values
from quantglow.importer.onnx.operators.tensor.shape import MAX_ELEMENTS, normal
from quantglow.importer.onnx.operators.tensor.slicing import SliceRange, along_span
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.expression import arg, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.loop import Loop
from quantglow.ir.ops.shape import Concat, Reshape, Transpose
from quantglow.ir.symbolic.size import Dim, FixedShape, decide

MOST_UNROLLED = 64
"""Maximum number of trips of a loop that reads all of a value that grows: each has nodes of its
own."""

READS_LAST_ROWS = (
    f"beyond {MOST_UNROLLED} trips, values may grow by rows that are appended to their end, if the "
    "body reads only the last of them, of which there are as many before the first trip"
)


class Changing(OfLateShapes):
    """A carried value has another type after a trip."""


class Widening(Exception):
    """Carried values of one element have more dimensions after a trip: their shapes by number."""

    def __init__(self, shapes: Mapping[int, FixedShape]) -> None:
        super().__init__(shapes)
        self.shapes = shapes


def _body_values(call: Call, import_body: ImportBody) -> list[Node]:
    """The outputs of a body whose inputs are bound."""
    call.scope.loops += 1
    try:
        return inner_values(call, "body", import_body)
    finally:
        call.scope.loops -= 1


@dataclass(frozen=True)
class LoopOperands:
    """The operands of a loop: ``carried`` values, and ``sliced`` ones along axis 0."""

    call: Call
    carried: tuple[Node, ...]
    sliced: tuple[Node, ...]
    trips: Dim
    conditional: bool = False

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        """Inputs of a body under these names."""
        kinds = [x.type for x in self.carried]
        kinds += [x.type.with_shape(x.type.shape[1:]) for x in self.sliced]
        claim = self.call.scope.claim
        pairs = zip(names, kinds, strict=True)
        return tuple(Input(name=claim(name, derived=True), tensor=kind) for name, kind in pairs)

    def loop(self, inputs: Sequence[Input], ends: Sequence[Node]) -> LoopOutputs:
        """The loop whose body goes from the inputs to the ends."""
        for before, after in zip(self.carried, ends, strict=False):
            if before.type != after.type:
                raise Changing(f"a value that it carries is {before.type}, then {after.type}")
        return LoopOutputs(self, *close(self.call.scope, inputs, ends))


@dataclass(frozen=True)
class LoopOutputs:
    """A loop, of which each result becomes a node where something reads it."""

    operands: LoopOperands
    body: Graph
    captured: tuple[Node, ...]

    def result(self, name: str, number: int) -> Loop:
        """A result of the loop under this name."""
        loop = Loop(
            name=name,
            carried=self.operands.carried,
            sliced=self.operands.sliced,
            captured=self.captured,
            body=self.body,
            trips=self.operands.trips,
            output=number,
            conditional=self.operands.conditional,
        )
        if loop.type.is_empty or decide(loop.type.size > MAX_ELEMENTS):
            raise Unsupported(f"{name!r} would have shape {loop.type.shape}")
        return loop

    def outputs(self, first: int) -> Iterator[tuple[int, str]]:
        """The outputs of the ONNX node that something reads, of which the first is result ``first``
        of the loop: their results and names."""
        call = self.operands.call
        for position, name in enumerate(call.proto.output):
            if name in call.scope.used:
                yield first + position, str(name)


def reversed_steps(call: Call, x: Node, tag: str) -> Node:
    """The elements along axis 0 from the last to the first."""
    steps = x.type.shape[0]
    return along_span(call.derive(tag), x, 0, SliceRange(steps - 1, steps, -1))


def import_scan(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """ONNX Scan along any axes, in either direction."""
    if call.opset < 9:
        raise Unsupported("before opset 9 it has a batch axis")
    count = call.integer("num_scan_inputs", 0)
    states, values = len(call.proto.input) - count, call.tensors()
    axes = call.integers("scan_input_axes", (0,) * count)
    ways = call.integers("scan_input_directions", (0,) * count)
    sliced = [_slice(call, *x) for x in zip(values[states:], axes, ways, strict=True)]
    operands = LoopOperands(call, tuple(values[:states]), tuple(sliced), sliced[0].type.shape[0])
    names = [value.name for value in call.attributes["body"].input]
    inputs = operands.inputs(names)
    call.scope.values.update(zip(names, inputs, strict=True))
    loop = operands.loop(inputs, _body_values(call, import_body))
    return {
        name: loop.result(call.scope.claim(name), number)
        if number < states
        else _stack(call, loop, number, name)
        for number, name in loop.outputs(0)
    }


def _slice(call: Call, x: Node, axis: int, way: int) -> Node:
    """A scan input with its axis in front, in the order of the trips."""
    (axis,) = normal((axis,), x.type.rank)
    if axis:
        perm = (axis, *(a for a in range(x.type.rank) if a != axis))
        x = Transpose(name=call.derive("first"), x=x, perm=perm)
    return reversed_steps(call, x, "backwards") if way else x


def _stack(call: Call, loop: LoopOutputs, number: int, name: str) -> Node:
    """A scan output with its axis in the place that the model wants, in its direction."""
    position = number - len(loop.operands.carried)
    count = len(loop.body.outputs) - len(loop.operands.carried)
    way = call.integers("scan_output_directions", (0,) * count)[position]
    stacked: Node = loop.result(call.derive("stacked"), number)
    if way:
        stacked = reversed_steps(call, stacked, "forwards")
    rank = stacked.type.rank
    (axis,) = normal((call.integers("scan_output_axes", (0,) * count)[position],), rank)
    perm = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return Transpose(name=call.scope.claim(name), x=stacked, perm=perm)


def _has_few_trips(call: Call) -> bool:
    """Whether a loop has a known number of trips that may be unrolled."""
    trips = most_trips(call)
    return decide(trips > 0) and decide(trips <= MOST_UNROLLED)


def import_loop(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """ONNX Loop: for a number of trips, while a condition holds, or both."""
    if call.scope.problems:
        raise OfLateShapes("its subgraphs were not looked at")
    try:
        return widen(call, import_body)
    except Unsupported as reason:
        call.scope.claimed.difference_update(call.proto.output)
        if isinstance(reason, Changing) and _has_few_trips(call):
            return unroll(call, import_body)
        if growing := growing_values(call, import_body):
            with suppress(Unsupported):
                return widen(call, import_body, growing)
        if isinstance(reason, Changing):
            raise OfLateShapes(f"{reason}; {READS_LAST_ROWS}") from None
        raise


def unroll(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """A loop whose values may grow, with nodes of its own for each trip."""
    values, body = call.scope.values, call.attributes["body"]
    names = [value.name for value in body.input]
    carried = [values[name] for name in call.proto.input[2:]]
    rows: list[list[Node]] = [[] for _ in body.output[1 + len(carried) :]]
    for trip in range(most_trips(call)):
        values.update({names[0]: KnownValue(names[0], np.array(trip)), names[1]: HOLDS})
        values.update(zip(names[2:], carried, strict=True))
        holds, *ends = _body_values(call, import_body)
        if any(by_value(call, holds)):
            raise OfLateShapes("a value that it carries grows until a condition ends it")
        carried = [values[output.name] for output in body.output[1 : 1 + len(carried)]]
        for row, end in zip(rows, ends[len(carried) :], strict=True):
            shape = (1, *end.type.shape)
            row.append(Reshape(name=call.derive("row"), x=end, shape=shape))
    stacked = [Concat(name=call.derive("rows"), parts=tuple(row), axis=0) for row in rows]
    return dict(zip(call.proto.output, [*carried, *stacked], strict=False))


def widen(call: Call, import_body: ImportBody, growing: Sequence[Growing] = ()) -> dict[str, Value]:
    """A Loop of the graph; carried values of one element have as many dimensions as the body gives
    them."""
    parts = CarriedState.of(call, growing)
    try:
        return loop(parts, import_body, {})
    except Widening as widening:
        call.scope.claimed.difference_update(call.proto.output)
        try:
            return loop(parts, import_body, widening.shapes)
        except Widening:
            raise Changing("the number of dimensions of a value grows in each trip") from None


def loop(
    parts: CarriedState, import_body: ImportBody, shapes: Mapping[int, FixedShape]
) -> dict[str, Value]:
    """A Loop of the graph; ``shapes``: those of some carried values of one element, by number.

    The first values that it carries are the condition, if there is one, and the number of the trip.
    """
    call = parts.call
    names = [value.name for value in call.attributes["body"].input]
    number = Constant(name=call.derive("first-trip"), value=np.zeros((), np.int64))
    first_values = [parts.first(at, shapes.get(at, ())) for at in parts.changing]
    operands = LoopOperands(call, (number, *first_values), (), most_trips(call))
    inner = [names[0], *(names[2 + at] for at in parts.changing)]
    inputs = list(operands.inputs(inner))
    call.scope.values.update({names[2 + at]: value for at, value in parts.unchanging.items()})
    call.scope.values.update({**dict(zip(inner, inputs, strict=True)), names[1]: HOLDS})
    holds, *outputs = _body_values(call, import_body)
    ends = parts.next_values(outputs)
    _check_ranks(parts, first_values, ends)
    following = compute(call, "next-trip", fn("iadd", arg(0), lconst(1)), inputs[0])
    conditions = [*by_count(call, number, following), *by_value(call, holds)]
    if surely_runs(call):
        _drop_unread(parts, first_values, inputs, ends)
    if conditions:
        if len(ends) > len(first_values):
            raise OfLateShapes("it stacks the values of a number of trips that it computes")
        before, after = (conjunction(call, values) for values in zip(*conditions, strict=True))
        operands = replace(operands, carried=(before, number, *first_values), conditional=True)
        condition = Input(name=call.scope.claim(names[1], derived=True), tensor=before.type)
        inputs, ends = [condition, *inputs], [after, following, *ends]
    else:
        operands, ends = replace(operands, carried=(number, *first_values)), [following, *ends]
    loop = operands.loop(inputs, ends)
    return _results(parts, loop, len(operands.carried) - len(first_values))


def _results(parts: CarriedState, loop: LoopOutputs, first: int) -> dict[str, Value]:
    """The outputs of the ONNX node; result ``first`` of the loop is the first changing value."""
    scope, values = parts.call.scope, dict(parts.results())
    names = parts.changing_outputs()
    for at, name in enumerate(names, first):
        if name in scope.used:
            values[name] = loop.result(scope.claim(name), at)
    for at, (name, grows) in enumerate(parts.growing_outputs(), first + len(names)):
        if name in scope.used:
            values[name] = grows.join(loop.result(parts.call.derive("rows"), at))
    return values


def _check_ranks(parts: CarriedState, first_values: Sequence[Node], ends: Sequence[Node]) -> None:
    """Raise ``Widening`` if values of one element have more dimensions after the first trip, which
    surely runs."""
    shapes = {
        number: after.type.fixed_shape
        for number, before, after in zip(parts.changing, first_values, ends, strict=False)
        if before.type.is_single and after.type.is_single and before.type.rank < after.type.rank
    }
    if shapes and surely_runs(parts.call):
        raise Widening(shapes)


def _drop_unread(
    parts: CarriedState, first_values: list[Node], inputs: list[Input], ends: Sequence[Node]
) -> None:
    """First values that the first trip replaces unread get the type of what replaces them."""
    for position, number in enumerate(parts.changing):
        kind = ends[position].type
        if number in parts.unread and first_values[position].type != kind:
            first_values[position] = zeros_node(parts.call, kind)
            inputs[1 + position] = replace(inputs[1 + position], tensor=kind)
