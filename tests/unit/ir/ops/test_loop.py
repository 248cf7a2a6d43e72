"""The type rules of Loop, and what a run computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, Elementwise, Loop
from quantglow.ir.ops.expression import arg, call, const
from quantglow.ir.ops.loop import ENDLESS
from quantglow.ir.types import DType, ElementType, TensorType, f32
from quantglow.support.errors import TypeRuleError

STATE, ELEMENT = Input(name="state", tensor=f32(2)), Input(name="element", tensor=f32(2))
SUM = Add(name="sum", x=STATE, y=ELEMENT)
BODY = Graph((STATE, ELEMENT), (("sum", SUM), ("sum", SUM)))


def floats(*shape: int) -> Constant:
    return Constant(name="c", value=np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def running_sum(**changed: Any) -> Loop:
    fields: dict[str, Any] = {"carried": (floats(2),), "sliced": (floats(3, 2),), "captured": ()}
    return Loop(name="loop", **{**fields, "body": BODY, "trips": 3, **changed})


def test_carried_and_stacked_values() -> None:
    start, rows = floats(2).value, floats(3, 2).value
    sums = start + np.cumsum(rows, axis=0, dtype=np.float32)
    np.testing.assert_array_equal(running_sum().evaluate(start, rows), sums[-1])
    np.testing.assert_array_equal(running_sum(output=1).evaluate(start, rows), sums)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"trips": 4}, "4 elements along axis 0"),
        ({"sliced": ()}, "the body takes"),
        ({"carried": (floats(3),)}, "the body takes"),
        ({"output": 2}, "no result 2"),
        ({"conditional": True}, "no condition"),
        ({"body": Graph((STATE, ELEMENT), (("c", floats(3)),))}, "cannot take again"),
    ],
)
def test_refusals(changed: dict[str, Any], cause: str) -> None:
    with pytest.raises(TypeRuleError, match=cause):
        running_sum(**changed)


def doubling(outputs: int = 2) -> Loop:
    """Doubles a number while it is below 20."""
    holds = Input(name="holds", tensor=TensorType(DType.BOOL, ()))
    number = Input(name="number", tensor=f32())
    twice = Add(name="twice", x=number, y=number)
    below = call("lt", arg(0), const(20.0))
    on: Node = Elementwise(name="on", args=(twice,), expression=below, out=ElementType(DType.BOOL))
    ends = tuple((end.name, end) for end in (on, twice, twice))[:outputs]
    first = Constant(name="first", value=np.array(True))
    start = Constant(name="start", value=np.array(3, np.float32))
    return Loop(
        name="loop",
        carried=(first, start),
        sliced=(),
        captured=(),
        body=Graph((holds, number), ends),
        trips=ENDLESS,
        output=1,
        conditional=True,
    )


def test_a_condition_ends_a_loop() -> None:
    assert doubling().evaluate(np.array(True), np.float32(3)) == 24
    assert doubling().evaluate(np.array(False), np.float32(3)) == 3


def test_a_conditional_loop_stacks_nothing() -> None:
    with pytest.raises(TypeRuleError, match="unknown number"):
        doubling(outputs=3)
