"""Importers of Scan and Loop, whose bodies are imported node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.frontend.bodies import closed
from quantglow.frontend.context import Call, Unsupported
from quantglow.frontend.operators.branches import ImportBody, inner_values
from quantglow.frontend.operators.shape import MAX_ELEMENTS, normal
from quantglow.frontend.operators.slicing import Span, along_span
from quantglow.frontend.values import Known, Value
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.ops.expression import Expr, arg, lconst
from quantglow.ops.expression import call as fn
from quantglow.ops.loop import ENDLESS, Loop
from quantglow.ops.primitives import Elementwise
from quantglow.ops.shape import Concat, Reshape, Transpose
from quantglow.symbolic.shapes import integer
from quantglow.types import DType, ElementType

MOST_UNROLLED = 64
"""Maximum number of trips of a loop whose values grow: each has nodes of its own."""


class Changing(Unsupported):
    """A carried value has another type after a trip."""


@dataclass(frozen=True)
class Operands:
    """The operands of a loop: ``carried`` values, and ``sliced`` ones along axis 0."""

    call: Call
    carried: tuple[Node, ...]
    sliced: tuple[Node, ...]
    trips: int
    conditional: bool = False

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        """Inputs of a body under these names."""
        kinds = [x.type for x in self.carried]
        kinds += [x.type.with_shape(x.type.shape[1:]) for x in self.sliced]
        claim = self.call.scope.claim
        pairs = zip(names, kinds, strict=True)
        return tuple(Input(name=claim(name, derived=True), tensor=kind) for name, kind in pairs)

    def loop(self, inputs: Sequence[Input], ends: Sequence[Node]) -> Results:
        """The loop whose body goes from the inputs to the ends."""
        for before, after in zip(self.carried, ends, strict=False):
            if before.type != after.type:
                raise Changing(f"a value that it carries is {before.type}, then {after.type}")
        return Results(self, *closed(self.call.scope, inputs, ends))


@dataclass(frozen=True)
class Results:
    """A loop, of which each result becomes a node where something reads it."""

    operands: Operands
    body: Graph
    captured: tuple[Node, ...]

    def result(self, name: str, number: int) -> Loop:
        """A result of the loop under this name."""
        made = Loop(
            name=name,
            carried=self.operands.carried,
            sliced=self.operands.sliced,
            captured=self.captured,
            body=self.body,
            trips=self.operands.trips,
            output=number,
            conditional=self.operands.conditional,
        )
        if not 0 < made.type.size <= MAX_ELEMENTS:
            raise Unsupported(f"{name!r} would have shape {made.type.shape}")
        return made

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
    return along_span(call.derived(tag), x, 0, Span(steps - 1, steps, -1))


def import_scan(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """ONNX Scan along any axes, in either direction."""
    if call.opset < 9:
        raise Unsupported("before opset 9 it has a batch axis")
    count = call.integer("num_scan_inputs", 0)
    states, given = len(call.proto.input) - count, call.tensors()
    axes = call.integers("scan_input_axes", (0,) * count)
    ways = call.integers("scan_input_directions", (0,) * count)
    sliced = [_sliced(call, *x) for x in zip(given[states:], axes, ways, strict=True)]
    operands = Operands(call, tuple(given[:states]), tuple(sliced), sliced[0].type.shape[0])
    names = [value.name for value in call.attributes["body"].input]
    inputs = operands.inputs(names)
    call.scope.values.update(zip(names, inputs, strict=True))
    loop = operands.loop(inputs, inner_values(call, "body", import_body))
    return {
        name: loop.result(call.scope.claim(name), number)
        if number < states
        else _stacked(call, loop, number, name)
        for number, name in loop.outputs(0)
    }


def _sliced(call: Call, x: Node, axis: int, way: int) -> Node:
    """A scan input with its axis in front, in the order of the trips."""
    (axis,) = normal((axis,), x.type.rank)
    if axis:
        perm = (axis, *(a for a in range(x.type.rank) if a != axis))
        x = Transpose(name=call.derived("first"), x=x, perm=perm)
    return reversed_steps(call, x, "backwards") if way else x


def _stacked(call: Call, loop: Results, number: int, name: str) -> Node:
    """A scan output with its axis in the place that the model wants, in its direction."""
    position = number - len(loop.operands.carried)
    count = len(loop.body.outputs) - len(loop.operands.carried)
    way = call.integers("scan_output_directions", (0,) * count)[position]
    made: Node = loop.result(call.derived("stacked"), number)
    if way:
        made = reversed_steps(call, made, "forwards")
    rank = made.type.rank
    (axis,) = normal((call.integers("scan_output_axes", (0,) * count)[position],), rank)
    perm = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return Transpose(name=call.scope.claim(name), x=made, perm=perm)


def import_loop(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """ONNX Loop: for a number of trips, while a condition holds, or both."""
    try:
        return looped(call, import_body)
    except Changing:
        if not 0 < _most_trips(call) <= MOST_UNROLLED:
            raise
        call.scope.claimed.difference_update(call.proto.output)
        return unrolled(call, import_body)


def unrolled(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """A loop whose values may grow, with nodes of its own for each trip."""
    values, body = call.scope.values, call.attributes["body"]
    names = [value.name for value in body.input]
    carried = [values[name] for name in call.proto.input[2:]]
    rows: list[list[Node]] = [[] for _ in body.output[1 + len(carried) :]]
    for trip in range(_most_trips(call)):
        values.update({names[0]: Known(names[0], np.array(trip)), names[1]: HOLDS})
        values.update(zip(names[2:], carried, strict=True))
        holds, *ends = inner_values(call, "body", import_body)
        if any(_by_value(call, holds)):
            raise Unsupported("a value that it carries grows until a condition ends it")
        carried = [values[output.name] for output in body.output[1 : 1 + len(carried)]]
        for row, end in zip(rows, ends[len(carried) :], strict=True):
            shape = (1, *end.type.shape)
            row.append(Reshape(name=call.derived("row"), x=end, shape=shape))
    stacked = [Concat(name=call.derived("rows"), parts=tuple(row), axis=0) for row in rows]
    return dict(zip(call.proto.output, [*carried, *stacked], strict=False))


def looped(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """A Loop of the graph.

    The first values that it carries are the condition, if there is one, and the number of the trip.
    """
    names = [value.name for value in call.attributes["body"].input]
    number = Constant(name=call.derived("first-trip"), value=np.zeros((), np.int64))
    given = tuple(call.scope.tensor(name) for name in call.proto.input[2:])
    operands = Operands(call, (number, *given), (), _most_trips(call))
    inputs = operands.inputs([names[0], *names[2:]])
    bound: Mapping[str, Value] = dict(zip([names[0], *names[2:]], inputs, strict=True))
    call.scope.values.update({**bound, names[1]: HOLDS})
    holds, *ends = inner_values(call, "body", import_body)
    following = _computed(call, "next-trip", fn("iadd", arg(0), lconst(1)), inputs[0])
    conditions = [*_by_count(call, number, following), *_by_value(call, holds)]
    if conditions:
        if len(ends) > len(given):
            raise Unsupported("it stacks the values of a number of trips that it computes")
        before, after = (_all(call, values) for values in zip(*conditions, strict=True))
        operands = Operands(call, (before, number, *given), (), operands.trips, True)
        asked = Input(name=call.scope.claim(names[1], derived=True), tensor=before.type)
        inputs, ends = (asked, *inputs), [after, following, *ends]
    else:
        ends = [following, *ends]
    loop = operands.loop(inputs, ends)
    first = len(operands.carried) - len(given)
    return {name: loop.result(call.scope.claim(name), at) for at, name in loop.outputs(first)}


HOLDS = Known("holds", np.array(True))
"""The condition as a body sees it: a trip runs only where it holds."""

Condition = tuple[Node, Node]
"""A condition before the first trip, and before the next one."""


def _most_trips(call: Call) -> int:
    if not (call.has(0) and call.is_known(0)):
        return ENDLESS
    return integer(call.array(0, "trip count").reshape(-1)[0])


def _by_count(call: Call, number: Node, following: Node) -> Iterator[Condition]:
    """Fewer trips were made than a value says that is computed."""
    if call.has(0) and not call.is_known(0):
        limit = _scalar(call, call.tensor(0), DType.I64)
        less = fn("lt", arg(0), arg(1))
        yield (
            _computed(call, "some", less, number, limit, out=DType.BOOL),
            _computed(call, "more", less, following, limit, out=DType.BOOL),
        )


def _by_value(call: Call, holds: Node) -> Iterator[Condition]:
    """The condition of the model, unless it is always true."""
    first = call.has(1) and not (call.is_known(1) and bool(call.array(1, "condition").all()))
    if first or not (isinstance(holds, Constant) and bool(holds.value.all())):
        true = Constant(name=call.derived("true"), value=np.array(True))
        before = call.tensor(1) if first else true
        yield _scalar(call, before, DType.BOOL), _scalar(call, holds, DType.BOOL)


def _scalar(call: Call, x: Node, dtype: DType) -> Node:
    if (x.type.dtype, x.type.size) != (dtype, 1):
        raise Unsupported(f"{x.name!r} is {x.type}, no scalar of {dtype}")
    return x if not x.type.shape else Reshape(name=call.derived("scalar"), x=x, shape=())


def _all(call: Call, values: Sequence[Node]) -> Node:
    """Whether all conditions hold."""
    if len(values) == 1:
        return values[0]
    return _computed(call, "both", fn("and", arg(0), arg(1)), *values, out=DType.BOOL)


def _computed(
    call: Call, tag: str, expression: Expr, *args: Node, out: DType = DType.I64
) -> Elementwise:
    element = ElementType(out)
    return Elementwise(name=call.derived(tag), args=args, expression=expression, out=element)
