"""Comparisons, conditions, and selections by them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.generators.onnx_models.drawing import (
    CONDITION,
    DRAWN,
    FLOAT,
    INTEGER,
    WHOLE,
    Drawing,
    Value,
)
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import (
    bounded,
    broadcastable,
    fits,
    numbers,
    tail,
)

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
LOGICAL = ("And", "Or", "Xor")
BRANCHES = ("Relu", "Neg", "Sigmoid", "Identity", "Abs")


@draws(*COMPARISONS, often=0.5)
def comparison(d: Drawing) -> object:
    x = d.floats()
    return d.node(d.choose(COMPARISONS), x, broadcastable(d, x))


@draws("Equal")
def equality(d: Drawing) -> object:
    """Equality of exact numbers."""
    if d.chance(0.5):
        x = d.of((INTEGER,))
        return d.node("Equal", x, broadcastable(d, x))
    x = d.inner("Round", d.choose([v for v in d.inputs if v.element == FLOAT] or [d.floats()]))
    return d.node("Equal", x, d.constant(np.float32(d.integer(-1, 1))))


@draws("IsNaN", "IsInf")
def special_values(d: Drawing) -> object:
    """Tests of 1 / round(x) and log(round(x)), which are sometimes infinite or NaN."""
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
    """Two branches, on a condition that is constant or computed.

    Some samples take one of them, or none does: a maximum of normal numbers lies around 2, and
    hardly ever above 40.
    """
    x = d.floats()
    if d.chance(0.3):
        c = d.constant(np.array(d.chance(0.5)))
    elif d.chance(0.7):
        largest = d.inner("ReduceMax", x, keepdims=0)
        c = d.inner(
            d.choose(("Greater", "Less")), largest, d.constant(np.float32(d.choose((2, 40))))
        )
    else:
        c = d.of((CONDITION,), 0)
    bodies = {name: body(d, x, name) for name in ("then_branch", "else_branch")}
    return d.node("If", c, **bodies)


def body(d: Drawing, x: Value, name: str) -> onnx.GraphProto:
    """A graph of one to four operators that reads x and weights from outside, sometimes with
    another If.
    """
    prefix = f"{name}{len(d.nodes)}_{d.names}"
    d.names += 1
    nodes: list[onnx.NodeProto] = []
    last = x.name
    for step in range(d.integer(1, 4)):
        result = f"{prefix}_{step}"
        nodes.append(layer(d, x, last, result))
        last = result
    if d.chance(0.2):
        inner = {which: body(d, x, f"{name}_{which}") for which in ("then_branch", "else_branch")}
        c = d.constant(np.array(d.chance(0.5))) if d.chance(0.3) else d.of((CONDITION,), 0)
        last = f"{prefix}_inner"
        nodes.append(helper.make_node("If", [c.name], [last], **inner))
    info = helper.make_tensor_value_info(last, x.element, x.shape)
    return helper.make_graph(nodes, prefix, [], [info])


def layer(d: Drawing, x: Value, source: str, result: str) -> onnx.NodeProto:
    """A function of a value with the type of x, or a product with weights that other layers of its
    width may share.
    """
    if x.rank < 2 or d.chance(0.5):
        return helper.make_node(d.choose(BRANCHES), [source], [result])
    if d.opset >= 17 and d.chance(0.3):
        operands = [source, d.normal(x.shape[-1]).name]
        return helper.make_node("LayerNormalization", operands, [result])
    square = (x.shape[-1], x.shape[-1])
    known = [c.name for c in d.constants if tuple(c.dims) == square and c.data_type == FLOAT]
    w = d.choose(known) if known and d.chance(0.5) else d.weights(*square).name
    return helper.make_node("MatMul", [source, w], [result])


@draws("Cast", "CastLike")
def cast(d: Drawing) -> object:
    x = d.any()
    if x.element == FLOAT:
        x = bounded(d, x, 0, 127)
    if d.chance(0.3):
        return d.node("CastLike", x, numbers(d, d.choose(WHOLE), ()))
    return d.node("Cast", x, to=d.choose((FLOAT, FLOAT, CONDITION, *WHOLE)))


@draws("OptionalHasElement", "OptionalGetElement")
def presence(d: Drawing) -> object:
    """A tensor is an optional that has it."""
    kinds = ("OptionalHasElement", "OptionalGetElement") if d.opset >= 18 else ()
    return d.node(d.choose(kinds or ("OptionalHasElement",)), d.of(DRAWN))
