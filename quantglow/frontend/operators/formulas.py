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


def less(x: Expr, bound: float, then: Expr, otherwise: Expr) -> Expr:
    return fn("select", fn("lt", x, const(bound)), then, otherwise)


def signed(value: Expr) -> Expr:
    """An odd function's value at |x| as its value at x."""
    return if_negative(X, fn("neg", value), value)


def log1p(x: Expr) -> Expr:
    """``log(1 + x)``; what rounding adds to 1 + x is taken off by the quotient."""
    sum_ = fn("add", ONE, x)
    quotient = fn("div", x, fn("sub", sum_, ONE))
    return fn("select", fn("eq", sum_, ONE), x, fn("mul", fn("log", sum_), quotient))


def sinh() -> Expr:
    """By its series near 0; in two factors, so that exp overflows no earlier than sinh."""
    square = fn("mul", X, X)
    series = fn("mul", X, polynomial(square, 1, 1 / 6, 1 / 120, 1 / 5040).rounded())
    return less(SIZE, 1, series, signed(_halves("sub")))


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
    near = log1p(fn("add", SIZE, fn("div", square, root)))
    far = fn("add", fn("log", SIZE), const(math.log(2)))
    return signed(less(SIZE, 1e4, near, far))


def acosh() -> Expr:
    """``log1p(t + sqrt(t) sqrt(t + 2))`` of t = x - 1, ``log(2 x)`` where x is large; NaN where t
    is negative, however large."""
    t = fn("sub", X, ONE)
    root = fn("mul", fn("sqrt", t), fn("sqrt", fn("add", t, const(2))))
    near = log1p(fn("add", t, root))
    return less(X, 1e4, near, fn("add", fn("log", X), const(math.log(2))))


def atanh() -> Expr:
    return fn("mul", const(0.5), log1p(fn("div", fn("add", X, X), fn("sub", ONE, X))))


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
