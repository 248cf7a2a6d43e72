"""Arithmetic of integers."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.generators.onnx_models.drawing import INT32, INTEGER, UINT8, WHOLE, Drawing, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import broadcastable, numbers, tail

BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")


def whole(d: Drawing) -> Value:
    return d.of((INTEGER, INTEGER, INT32))


def divisor(d: Drawing, x: Value) -> Value:
    """A constant without zeros."""
    size = d.rng.integers(1, 8, tail(d, x)) * d.rng.choice([-1, 1], ())
    return d.constant(size.astype(helper.tensor_dtype_to_np_dtype(x.element)))


@draws("Add", "Sub", "Mul", "Max", "Min", "Less", "Greater", often=0.3)
def arithmetic(d: Drawing) -> object:
    x = whole(d)
    op = d.choose(("Add", "Sub", "Mul", "Max", "Min", "Less", "Greater"))
    return d.node(op, x, broadcastable(d, x))


@draws("Neg", "Abs", "Sign", often=0.5)
def unary(d: Drawing) -> object:
    return d.node(d.choose(("Neg", "Abs", "Sign")), whole(d))


@draws("Mod", "Div")
def division(d: Drawing) -> object:
    x = whole(d)
    if d.chance(0.3):
        return d.node("Div", x, divisor(d, x))
    return d.node("Mod", x, divisor(d, x), **d.some({"fmod": (0, 1)}))


@draws(*BITWISE, "BitwiseNot", often=0.5)
def bitwise(d: Drawing) -> object:
    x = d.of(WHOLE)
    if d.chance(0.25):
        return d.node("BitwiseNot", x)
    return d.node(d.choose(BITWISE), x, broadcastable(d, x))


@draws("BitShift")
def shift(d: Drawing) -> object:
    x = d.of((UINT8,))
    by = numbers(d, UINT8, tail(d, x), 0, 7)
    return d.node("BitShift", x, by, direction=d.choose(("LEFT", "RIGHT")))


@draws("CumSum", "CumProd")
def running(d: Drawing) -> object:
    """Running sums and products, of floats too."""
    op = d.choose(("CumSum", "CumProd"))
    x = d.floats(1, 2, 3, 4) if d.chance(0.7) else d.of((INTEGER,), 1, 2, 3)
    if op == "CumProd":
        x = d.floats(1, 2, 3)
    axis = d.constant(np.int64(d.integer(-x.rank, x.rank - 1)))
    return d.node(op, x, axis, **d.some({"exclusive": (0, 1), "reverse": (0, 1)}))
