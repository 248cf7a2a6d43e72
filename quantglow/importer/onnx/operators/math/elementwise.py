"""Importers of element-wise operators and of float functions that are formulas.

A function without an operator of its own becomes one ``Elementwise``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Result, Unsupported, importer
from quantglow.importer.onnx.nodes.values import ItemsValue, ObjectValue
from quantglow.importer.onnx.operators.math.integers import (
    ON_INTEGERS,
    clip_at_run_time,
    integer_fold,
    integer_unary,
    map_elements,
)
from quantglow.ir import ops
from quantglow.ir.graph.node import OPS, Node, attribute_fields
from quantglow.ir.ops.expression import Expr, arg, const, if_negative, polynomial
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.types import DType

LARGEST = float(np.finfo(np.float32).max)

CUSTOM = ("Clip", "Gelu")
"""Operators whose ONNX attributes are not floats of the same names."""

DECLARED: dict[str, type[ops.Unary]] = {
    name: kind for name, kind in OPS.items() if issubclass(kind, ops.Unary) and name not in CUSTOM
}

_BINARY: dict[str, Callable[..., Node]] = {
    "Add": ops.Add,
    "Sub": ops.Sub,
    "Mul": ops.Mul,
    "Div": ops.Div,
    "Max": ops.Max,
    "Min": ops.Min,
    "Sum": ops.Add,
}

X = arg(0)
SIZE = fn("abs", X)
ONE = const(1)
LINEAR = 2.0**-13
"""Magnitude below which x - x^3/3 and x - x^3/6 are x."""


@importer(*DECLARED)
def declare(call: Call) -> Node:
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
    inner = ops.Softplus(name=call.derive("softplus"), x=x)
    gate = ops.Tanh(name=call.derive("tanh"), x=inner)
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
    low, high = _clip_bound(call, "min", 1, -math.inf), _clip_bound(call, "max", 2, math.inf)
    return ops.Clip(name=call.result, x=call.node(0), low=low, high=high)


def _clip_bound(call: Call, name: str, position: int, absent: float) -> float:
    if call.has(position):
        bound = float(np.float32(call.array(position, name).reshape(())))
    else:
        bound = call.number(name, absent)
    return absent if abs(bound) >= LARGEST and bound * absent > 0 else bound


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
    operator = _BINARY[call.proto.op_type]
    return _fold(call, lambda name, x, y: operator(name=name, x=x, y=y), call.result)


@importer("Mean")
def mean(call: Call) -> Node:
    """The sum times 1/n."""
    count = len(call.proto.input)
    if count == 1:
        return call.node(0)
    total = _fold(call, lambda name, x, y: ops.Add(name=name, x=x, y=y), call.derive("sum"))
    return ops.Mul(name=call.result, x=total, y=call.constant("share", np.array(1 / count)))


def _fold(call: Call, combine: Callable[[str, Node, Node], Node], last: str) -> Node:
    """``combine`` over all operands; the final node is called ``last``."""
    result, *operands = call.nodes()
    for i, operand in enumerate(operands, 1):
        name = last if i == len(operands) else call.derive("part")
        result = combine(name, result, operand)
    return result


@importer("Identity")
def identity(call: Call) -> Result:
    value = call.value(0)
    return value if isinstance(value, ObjectValue | ItemsValue) else call.tensor(0)


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


def _less(x: Expr, bound: float, then: Expr, otherwise: Expr) -> Expr:
    return fn("select", fn("lt", x, const(bound)), then, otherwise)


def _odd(value: Expr) -> Expr:
    """An odd function with slope 1 at 0: x near 0, else its value at |x| with the sign of x."""
    return _less(SIZE, LINEAR, X, if_negative(X, fn("neg", value), value))


def sinh() -> Expr:
    """By its series near 0; in two factors, so that exp overflows no earlier than sinh."""
    square = fn("mul", X, X)
    coefficients = (1 / math.factorial(2 * i + 1) for i in range(6))
    series = fn("mul", X, polynomial(square, *coefficients).rounded())
    value = _halves("sub")
    return _less(SIZE, 1, series, if_negative(X, fn("neg", value), value))


def _halves(combine: str) -> Expr:
    """``e/2 * e - or + (e/2) / e^3`` with ``e = exp(|x|/2)``: (exp(|x|) -+ exp(-|x|)) / 2"""
    root = fn("exp", fn("mul", SIZE, const(0.5)))
    half = fn("mul", root, const(0.5))
    return fn(combine, fn("mul", half, root), fn("div", const(0.5), fn("mul", root, root)))


def _asin() -> Expr:
    return fn("atan", fn("div", X, fn("sqrt", fn("mul", fn("sub", ONE, X), fn("add", ONE, X)))))


def _acos() -> Expr:
    root = fn("sqrt", fn("div", fn("sub", ONE, X), fn("add", ONE, X)))
    return fn("mul", const(2), fn("atan", root))


def _asinh() -> Expr:
    """``log1p(a + a^2 / (1 + sqrt(a^2 + 1)))`` of a = |x|, ``log(2 a)`` where a^2 is large."""
    square = fn("mul", SIZE, SIZE)
    root = fn("add", ONE, fn("sqrt", fn("add", square, ONE)))
    near = fn("log1p", fn("add", SIZE, fn("div", square, root)))
    far = fn("add", fn("log", SIZE), const(math.log(2)))
    return _odd(_less(SIZE, 1e4, near, far))


def _acosh() -> Expr:
    """``log1p(t + sqrt(t) sqrt(t + 2))`` of t = x - 1, ``log(2 x)`` where x is large; NaN where t
    is negative, however large."""
    t = fn("sub", X, ONE)
    root = fn("mul", fn("sqrt", t), fn("sqrt", fn("add", t, const(2))))
    near = fn("log1p", fn("add", t, root))
    return _less(X, 1e4, near, fn("add", fn("log", X), const(math.log(2))))


def _atanh() -> Expr:
    """``log1p(2 a / (1 - a)) / 2`` of a = |x|: infinite at 1, NaN beyond."""
    ratio = fn("div", fn("add", SIZE, SIZE), fn("sub", ONE, SIZE))
    return _odd(fn("mul", const(0.5), fn("log1p", ratio)))


PLAIN: dict[str, Expr] = {
    "Sin": fn("sin", X),
    "Cos": fn("cos", X),
    "Tan": fn("div", fn("sin", X), fn("cos", X)),
    "Asin": _asin(),
    "Acos": _acos(),
    "Atan": fn("atan", X),
    "Sinh": sinh(),
    "Cosh": _halves("add"),
    "Asinh": _asinh(),
    "Acosh": _acosh(),
    "Atanh": _atanh(),
    "Round": fn("rint", X),
}


@importer(*PLAIN)
def plain(call: Call) -> Node:
    """Functions without attributes."""
    return map_elements(call, PLAIN[call.proto.op_type], [call.node(0)], DType.F32)


@importer("Sign")
def sign(call: Call) -> Node:
    """-1, 0 or 1; NaN stays."""
    if not call.is_float(0):
        return integer_unary(call)
    below = if_negative(X, const(-1), fn("select", fn("eq", X, const(0)), const(0), X))
    value = fn("select", fn("gt", X, const(0)), ONE, below)
    return map_elements(call, value, [call.node(0)], DType.F32)
