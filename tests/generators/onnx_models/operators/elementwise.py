"""Operators of floats, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, Drawing
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import bounded, broadcastable, positive, tail
from tests.generators.unary_functions import FUNCTIONS

BETWEEN: dict[str, tuple[float, float]] = {
    "Asin": (-0.95, 0.95),
    "Acos": (-0.95, 0.95),
    "Atanh": (-0.95, 0.95),
    "Tan": (-1.4, 1.4),
    "Cosh": (-4.0, 4.0),
    "Exp": (-8.0, 4.0),
}
"""Functions that are well-behaved between two bounds only."""

ABOVE = {"Sqrt": 0.01, "Log": 0.1, "Reciprocal": 0.25, "Acosh": 1.1}
"""Functions that are well-behaved above a bound only."""

COMPOSED = ("Identity", "Mish", "Round", "Sign", "Sin", "Cos", "Atan", "Sinh", "Asinh")

UNARY: dict[str, Mapping[str, Sequence[Any]]] = {
    form.name: {name: (getattr(form.kind, name), value) for name, value in form.attributes.items()}
    for form in FUNCTIONS
    if form.importable and form.name not in BETWEEN and form.name not in ABOVE
} | {
    "LeakyRelu": {"alpha": (0.1, -0.5, 2.0)},
    "Gelu": {"approximate": ("none", "tanh")},
    **{name: {} for name in COMPOSED},
}
"""Functions that are well-behaved everywhere, and their attributes."""


@draws(*UNARY, often=0.5)
def unary(d: Drawing) -> object:
    op = d.choose(list(UNARY))
    return d.node(op, d.floats(), **d.some(UNARY[op]))


@draws(*BETWEEN, often=0.5)
def unary_between(d: Drawing) -> object:
    op = d.choose(list(BETWEEN))
    return d.node(op, bounded(d, d.floats(), *BETWEEN[op]))


@draws(*ABOVE)
def unary_above(d: Drawing) -> object:
    op = d.choose(list(ABOVE))
    return d.node(op, positive(d, d.floats(), ABOVE[op]))


@draws("Pow", often=2)
def power(d: Drawing) -> object:
    if d.chance(0.3):
        return d.node("Pow", d.floats(), d.constant(np.float32(d.choose((1, 2, 3)))))
    if d.chance(0.3):
        return d.node("Pow", positive(d, d.floats()), d.constant(np.int64(d.integer(-1, 3))))
    x = positive(d, d.floats())
    shape = tail(d, x) if d.chance(0.5) else ()
    return d.node("Pow", x, d.uniform(-1, 2, *shape))


@draws("Clip", often=2)
def clip(d: Drawing) -> object:
    low, high = sorted(d.rng.uniform(-2, 6, 2).astype(np.float32))
    return d.node("Clip", d.floats(), **d.some({"min": (low,), "max": (high,)}))


@draws("PRelu")
def prelu(d: Drawing) -> object:
    x = d.floats()
    return d.node("PRelu", x, d.uniform(-1, 1, *tail(d, x)))


@draws("Add", "Sub", "Mul", "Max", "Min", often=2)
def binary(d: Drawing) -> object:
    x = d.floats()
    pair = [x, broadcastable(d, x)]
    if d.chance(0.3):
        pair.reverse()
    return d.node(d.choose(("Add", "Sub", "Mul", "Max", "Min")), *pair)


@draws("Div", often=2)
def divide(d: Drawing) -> object:
    x = d.floats()
    if d.chance(0.4):
        return d.node("Div", broadcastable(d, x), positive(d, x, 0.5))
    size = np.abs(d.rng.normal(0, 1, tail(d, x))) + 0.5
    return d.node("Div", x, d.constant(size.astype(np.float32)))


@draws("Sum", "Mean")
def variadic(d: Drawing) -> object:
    x = d.floats()
    operands = [x, *(broadcastable(d, x) for _ in range(d.integer(0, 2)))]
    return d.node(d.choose(("Sum", "Mean", "Max", "Min")), *operands)


@draws("SwiGLU")
def gate(d: Drawing) -> object:
    x = d.floats(2, 3, 4)
    y = d.pick(lambda v: v.element == FLOAT and v.shape == x.shape)
    return d.node("SwiGLU", x, y, **d.some({"alpha": (0.5, 1.7)}))


@draws("Dropout")
def dropout(d: Drawing) -> object:
    ratio = d.some({"ratio": (np.float32(0.0), np.float32(0.4))})
    return d.node("Dropout", d.floats(), **ratio, outputs=d.integer(1, 2))
