"""Importers of element-wise operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from quantglow import ops
from quantglow.frontend.nodes.context import Call, Result, Unsupported, importer
from quantglow.frontend.operators.integers import (
    ON_INTEGERS,
    clip_at_run_time,
    integer_fold,
    integer_unary,
)
from quantglow.graph.node import OPS, Node, attribute_fields

LARGEST = float(np.finfo(np.float32).max)

CUSTOM = ("Clip", "Gelu")
"""Operators whose ONNX attributes are not floats of the same names."""

DECLARED: dict[str, type[ops.Unary]] = {
    name: kind for name, kind in OPS.items() if issubclass(kind, ops.Unary) and name not in CUSTOM
}


@importer(*DECLARED)
def declared(call: Call) -> Node:
    """A function of one float tensor as it is declared, its attributes by name."""
    if call.proto.op_type in ON_INTEGERS and not call.is_float(0):
        return integer_unary(call)
    kind = DECLARED[call.proto.op_type]
    names = attribute_fields(kind)
    attributes = {name: call.number(name, getattr(kind, name)) for name in names}
    return kind(name=call.result, x=call.node(0), **attributes)


@importer("Gelu")
def gelu(call: Call) -> Node:
    tanh = call.text("approximate", "none") == "tanh"
    return ops.Gelu(name=call.result, x=call.node(0), approximate=tanh)


@importer("Mish")
def mish(call: Call) -> Node:
    """``x * tanh(softplus(x))``"""
    x = call.node(0)
    inner = ops.Softplus(name=call.derived("softplus"), x=x)
    gate = ops.Tanh(name=call.derived("tanh"), x=inner)
    return ops.Mul(name=call.result, x=x, y=gate)


@importer("PRelu")
def prelu(call: Call) -> Node:
    call.array(1, "slope")
    return ops.PRelu(name=call.result, x=call.node(0), slope=call.node(1))


@importer("Clip")
def clip(call: Call) -> Node:
    """Bounds are attributes before opset 11, operands after; absent means unbounded."""
    computed = any(call.has(i) and not call.is_known(i) for i in (1, 2))
    if computed or not call.is_float(0):
        return clip_at_run_time(call)
    low, high = clip_bound(call, "min", 1, -math.inf), clip_bound(call, "max", 2, math.inf)
    return ops.Clip(name=call.result, x=call.node(0), low=low, high=high)


def clip_bound(call: Call, name: str, position: int, absent: float) -> float:
    if call.has(position):
        bound = float(np.float32(call.array(position, name).reshape(())))
    else:
        bound = call.number(name, absent)
    return absent if abs(bound) >= LARGEST and bound * absent > 0 else bound


_BINARY: dict[str, Callable[..., Node]] = {
    "Add": ops.Add,
    "Sub": ops.Sub,
    "Mul": ops.Mul,
    "Div": ops.Div,
    "Max": ops.Max,
    "Min": ops.Min,
    "Sum": ops.Add,
}


@importer("Add", "Sub", "Mul", "Div")
def binary(call: Call) -> Node:
    if not call.is_float(0):
        return integer_fold(call)
    x, y = call.node(0), call.node(1)
    return _BINARY[call.proto.op_type](name=call.result, x=x, y=y)


@importer("Pow")
def power(call: Call) -> Node:
    """The exponent may be of an integer type."""
    if call.is_known(1):
        exponent: Node = call.weights(1, "f32", lambda y: y)
    else:
        exponent = call.node(1)
    return ops.Pow(name=call.result, x=call.node(0), y=exponent)


@importer("Max", "Min", "Sum")
def variadic(call: Call) -> Node:
    """Folded from the left; one operand is itself."""
    if not call.is_float(0):
        return integer_fold(call)
    made = _BINARY[call.proto.op_type]
    return folded(call, lambda name, x, y: made(name=name, x=x, y=y), call.result)


@importer("Mean")
def mean(call: Call) -> Node:
    """The sum times 1/n."""
    count = len(call.proto.input)
    if count == 1:
        return call.node(0)
    total = folded(call, lambda name, x, y: ops.Add(name=name, x=x, y=y), call.derived("sum"))
    return ops.Mul(name=call.result, x=total, y=call.constant("share", np.array(1 / count)))


def folded(call: Call, combine: Callable[[str, Node, Node], Node], last: str) -> Node:
    """``combine`` over all operands; the final node is called ``last``."""
    result, *rest = call.nodes()
    for i, operand in enumerate(rest, 1):
        name = last if i == len(rest) else call.derived("part")
        result = combine(name, result, operand)
    return result


@importer("Identity")
def identity(call: Call) -> Node:
    return call.tensor(0)


@importer("Dropout")
def dropout(call: Call) -> list[Result]:
    """The identity, as long as it is not training; its mask keeps everything.

    Before opset 12 nothing says what the mask is then.
    """
    if call.has(2) and bool(call.array(2, "training_mode")):
        raise Unsupported("training_mode is set; export the model for inference")
    x = call.node(0)
    if call.opset < 12 or call.scope.used.isdisjoint(call.proto.output[1:]):
        return [x]
    call.reserve(x.type.shape, 1)
    return [x, np.ones(x.type.shape, bool)]
