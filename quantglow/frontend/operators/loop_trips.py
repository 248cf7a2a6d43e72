"""How often an ONNX Loop runs: a number of trips, a condition, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.frontend.nodes.values import Known
from quantglow.graph.node import Constant, Node
from quantglow.ops.expression import Expr, arg
from quantglow.ops.expression import call as fn
from quantglow.ops.loop import ENDLESS
from quantglow.ops.primitives import Elementwise
from quantglow.ops.shape import Reshape
from quantglow.symbolic.shapes import integer
from quantglow.types import DType, ElementType

HOLDS = Known("holds", np.array(True))
"""The condition as a body sees it: a trip runs only where it holds."""

Condition = tuple[Node, Node]
"""A condition before the first trip, and before the next one."""


def most_trips(call: Call) -> int:
    """The known number of trips, 0 for negative ones, or ``ENDLESS``."""
    if not (call.has(0) and call.is_known(0)):
        return ENDLESS
    return max(0, integer(call.array(0, "trip count").reshape(-1)[0]))


def by_count(call: Call, number: Node, following: Node) -> Iterator[Condition]:
    """Fewer trips were made than a value says that is computed."""
    if call.has(0) and not call.is_known(0):
        limit = _scalar(call, call.tensor(0), DType.I64)
        less = fn("lt", arg(0), arg(1))
        yield (
            computed(call, "some", less, number, limit, out=DType.BOOL),
            computed(call, "more", less, following, limit, out=DType.BOOL),
        )


def by_value(call: Call, holds: Node) -> Iterator[Condition]:
    """The condition of the model, unless it is always true."""
    first = call.has(1) and not _is_true(call)
    if first or not (isinstance(holds, Constant) and bool(holds.value.all())):
        true = Constant(name=call.derived("true"), value=np.array(True))
        before = call.tensor(1) if first else true
        yield _scalar(call, before, DType.BOOL), _scalar(call, holds, DType.BOOL)


def _scalar(call: Call, x: Node, dtype: DType) -> Node:
    if (x.type.dtype, x.type.size) != (dtype, 1):
        raise Unsupported(f"{x.name!r} is {x.type}, no scalar of {dtype}")
    return x if not x.type.shape else Reshape(name=call.derived("scalar"), x=x, shape=())


def all_of(call: Call, values: Sequence[Node]) -> Node:
    """Whether all conditions hold."""
    if len(values) == 1:
        return values[0]
    return computed(call, "both", fn("and", arg(0), arg(1)), *values, out=DType.BOOL)


def computed(
    call: Call, tag: str, expression: Expr, *args: Node, out: DType = DType.I64
) -> Elementwise:
    element = ElementType(out)
    return Elementwise(name=call.derived(tag), args=args, expression=expression, out=element)


def surely_runs(call: Call) -> bool:
    """Whether there is a first trip, whatever the values at run time are."""
    counted = not call.has(0) or (call.is_known(0) and most_trips(call) > 0)
    return counted and (not call.has(1) or _is_true(call))


def _is_true(call: Call) -> bool:
    """Whether the first condition is known to hold."""
    return call.is_known(1) and bool(call.array(1, "condition").all())
