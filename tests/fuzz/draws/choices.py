"""Comparisons, conditions, and what chooses by them."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz.drawing import CONDITION, DRAWN, FLOAT, INTEGER, WHOLE, Drawing, Value
from tests.fuzz.draws.family import draws
from tests.fuzz.draws.operands import bounded, broadcastable, fits, numbers, tail

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
LOGICAL = ("And", "Or", "Xor")
BRANCHES = ("Relu", "Neg", "Sigmoid", "Identity", "Abs")


@draws(*COMPARISONS, often=0.5)
def comparison(d: Drawing) -> object:
    x = d.floats()
    return d.node(d.choose(COMPARISONS), x, broadcastable(d, x))


@draws("Equal")
def equality(d: Drawing) -> object:
    """Of numbers that are exact."""
    if d.chance(0.5):
        x = d.of((INTEGER,))
        return d.node("Equal", x, broadcastable(d, x))
    x = d.inner("Round", d.choose([v for v in d.inputs if v.element == FLOAT] or [d.floats()]))
    return d.node("Equal", x, d.constant(np.float32(d.integer(-1, 1))))


@draws("IsNaN", "IsInf")
def special_values(d: Drawing) -> object:
    """Of 1 / round(x) and log(round(x)), which are infinite and NaN here and there."""
    x = d.inner(d.choose(("Log", "Reciprocal")), d.inner("Round", d.floats()))
    if d.chance(0.5):
        return d.node("IsNaN", x)
    return d.node("IsInf", x, **d.some({"detect_negative": (0, 1), "detect_positive": (0, 1)}))


@draws(*LOGICAL, "Not")
def logic(d: Drawing) -> object:
    c = d.of((CONDITION,))
    op = d.choose((*LOGICAL, "Not"))
    return d.node(op, c, *(() if op == "Not" else (broadcastable(d, c),)))


@draws("Where", often=3)
def where(d: Drawing) -> object:
    c = d.of((CONDITION,))
    fitting = [v for v in d.values if v.element in (FLOAT, INTEGER) and fits(v.shape, c.shape)]
    x = d.choose(fitting) if fitting else d.normal(*tail(d, c))
    return d.node("Where", c, x, broadcastable(d, x))


@draws("If", often=2)
def branch(d: Drawing) -> object:
    """Two branches of one operator each, on a condition that is known or is computed."""
    x = d.floats()
    if d.chance(0.3):
        c = d.constant(np.array(d.chance(0.5)))
    elif d.chance(0.5):
        c = d.inner("Greater", d.inner("ReduceMax", x, keepdims=0), d.constant(np.float32(2)))
    else:
        c = d.of((CONDITION,), 0)
    bodies = {name: body(d, x, name) for name in ("then_branch", "else_branch")}
    return d.node("If", c, **bodies)


def body(d: Drawing, x: Value, name: str) -> object:
    """A graph that reads x from outside."""
    op, result = d.choose(BRANCHES), f"{name}{len(d.nodes)}"
    node = helper.make_node(op, [x.name], [result])
    info = helper.make_tensor_value_info(result, x.element, x.shape)
    return helper.make_graph([node], name, [], [info])


@draws("Cast", "CastLike")
def cast(d: Drawing) -> object:
    x = d.any()
    if x.element == FLOAT:
        x = bounded(d, x, 0, 127)
    if d.chance(0.3):
        return d.node("CastLike", x, numbers(d, d.choose(WHOLE), ()))
    return d.node("Cast", x, to=d.choose((FLOAT, FLOAT, CONDITION, *WHOLE)))


@draws("OptionalHasElement")
def presence(d: Drawing) -> object:
    return d.node("OptionalHasElement", d.of(DRAWN))
