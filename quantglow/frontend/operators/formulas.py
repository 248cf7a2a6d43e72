"""Importers of float functions that have no operator of their own: each is one ``Elementwise``."""

from __future__ import annotations

import math

from quantglow.frontend.nodes.context import Call, importer
from quantglow.frontend.operators.integers import integer_unary, mapped
from quantglow.graph.node import Node
from quantglow.ops.expression import Expr, arg, const, if_negative, polynomial
from quantglow.ops.expression import call as fn
from quantglow.types import DType

X = arg(0)
SIZE = fn("abs", X)
ONE = const(1)
LINEAR = 2.0**-13
"""Below it x - x^3/3 and x - x^3/6 are x."""


def less(x: Expr, bound: float, then: Expr, otherwise: Expr) -> Expr:
    return fn("select", fn("lt", x, const(bound)), then, otherwise)


def odd(value: Expr) -> Expr:
    """An odd function with slope 1 at 0: x near 0, else its value at |x| with the sign of x."""
    return less(SIZE, LINEAR, X, if_negative(X, fn("neg", value), value))


def sinh() -> Expr:
    """By its series near 0; in two factors, so that exp overflows no earlier than sinh."""
    square = fn("mul", X, X)
    coefficients = (1 / math.factorial(2 * i + 1) for i in range(6))
    series = fn("mul", X, polynomial(square, *coefficients).rounded())
    value = _halves("sub")
    return less(SIZE, 1, series, if_negative(X, fn("neg", value), value))


def _halves(combine: str) -> Expr:
    """``e/2 * e - or + (e/2) / e^3`` with ``e = exp(|x|/2)``: (exp(|x|) -+ exp(-|x|)) / 2"""
    root = fn("exp", fn("mul", SIZE, const(0.5)))
    half = fn("mul", root, const(0.5))
    return fn(combine, fn("mul", half, root), fn("div", const(0.5), fn("mul", root, root)))


def asin() -> Expr:
    return fn("atan", fn("div", X, fn("sqrt", fn("mul", fn("sub", ONE, X), fn("add", ONE, X)))))


def acos() -> Expr:
    root = fn("sqrt", fn("div", fn("sub", ONE, X), fn("add", ONE, X)))
    return fn("mul", const(2), fn("atan", root))


def asinh() -> Expr:
    """``log1p(a + a^2 / (1 + sqrt(a^2 + 1)))`` of a = |x|, ``log(2 a)`` where a^2 is large."""
    square = fn("mul", SIZE, SIZE)
    root = fn("add", ONE, fn("sqrt", fn("add", square, ONE)))
    near = fn("log1p", fn("add", SIZE, fn("div", square, root)))
    far = fn("add", fn("log", SIZE), const(math.log(2)))
    return odd(less(SIZE, 1e4, near, far))


def acosh() -> Expr:
    """``log1p(t + sqrt(t) sqrt(t + 2))`` of t = x - 1, ``log(2 x)`` where x is large; NaN where t
    is negative, however large."""
    t = fn("sub", X, ONE)
    root = fn("mul", fn("sqrt", t), fn("sqrt", fn("add", t, const(2))))
    near = fn("log1p", fn("add", t, root))
    return less(X, 1e4, near, fn("add", fn("log", X), const(math.log(2))))


def atanh() -> Expr:
    """``log1p(2 a / (1 - a)) / 2`` of a = |x|: infinite at 1, NaN beyond."""
    ratio = fn("div", fn("add", SIZE, SIZE), fn("sub", ONE, SIZE))
    return odd(fn("mul", const(0.5), fn("log1p", ratio)))


PLAIN: dict[str, Expr] = {
    "Sin": fn("sin", X),
    "Cos": fn("cos", X),
    "Tan": fn("div", fn("sin", X), fn("cos", X)),
    "Asin": asin(),
    "Acos": acos(),
    "Atan": fn("atan", X),
    "Sinh": sinh(),
    "Cosh": _halves("add"),
    "Asinh": asinh(),
    "Acosh": acosh(),
    "Atanh": atanh(),
    "Round": fn("rint", X),
}


@importer(*PLAIN)
def plain(call: Call) -> Node:
    """Functions without attributes."""
    return mapped(call, PLAIN[call.proto.op_type], [call.node(0)], DType.F32)


@importer("Sign")
def sign(call: Call) -> Node:
    """-1, 0 or 1; NaN stays."""
    if not call.is_float(0):
        return integer_unary(call)
    below = if_negative(X, const(-1), fn("select", fn("eq", X, const(0)), const(0), X))
    value = fn("select", fn("gt", X, const(0)), ONE, below)
    return mapped(call, value, [call.node(0)], DType.F32)
