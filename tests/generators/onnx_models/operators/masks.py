"""Infinities, large numbers and NaN of the graph itself, in masks and paddings."""

from __future__ import annotations

import math

import numpy as np

from tests.generators.onnx_models.drawing import CONDITION, Drawing, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import fits

EXPOSED = 0.15
"""Share of masks whose infinities any operator may read, and may turn into NaN."""
SIZES = (math.inf, math.inf, 1e4, 1e9, float(np.finfo(np.float32).max))
"""Magnitudes of the numbers that hide others."""


@draws("Softmax", "ReduceMax", often=1.5)
def masked(d: Drawing) -> object:
    """Rows with a low number in some places, not all, before a Softmax or maximum."""
    x = d.floats(2, 3, 4)
    hidden = hiding(d, x)
    if d.chance(EXPOSED):
        return d.node("Where", *hidden)
    scores = d.inner("Where", *hidden)
    if d.chance(0.3):
        scores = d.inner("Mul", scores, d.constant(np.float32(0.5)))
    if d.chance(0.5):
        return d.node("Softmax", scores, axis=x.rank - 1)
    return d.node("ReduceMax", scores, axes=[x.rank - 1], keepdims=1)


def hiding(d: Drawing, x: Value) -> tuple[Value, Value, Value]:
    """Operands of a Where that hides some of x by a constant or computed condition.

    It never hides the largest number of a row.
    """
    low = d.constant(np.float32(-d.choose(SIZES)))
    conditions = [v for v in d.values if v.element == CONDITION and fits(v.shape, x.shape)]
    if d.chance(0.5):
        hides = d.rng.random(x.shape[-1]) < 0.4
        hides[0] = False
        return d.constant(hides), low, x
    largest = d.inner("ReduceMax", x, axes=[x.rank - 1], keepdims=1)
    below = d.inner("Less", x, largest)
    if conditions and d.chance(0.5):
        condition = d.choose(conditions)
        if all(
            a == b or a == 1 for a, b in zip(condition.shape[::-1], x.shape[::-1], strict=False)
        ):
            below = d.inner("And", below, condition)
    return below, low, x


@draws("Where", "Concat", often=1.5)
def absent(d: Drawing) -> object:
    """NaN for results that do not exist, which is moved to an output, or replaced by a number.

    Few other operators read it, because they would turn all values into NaN.
    """
    x = d.floats(2, 3, 4)
    if d.chance(0.3):
        row = np.full((1, *x.shape[1:]), math.nan, np.float32)
        marked = d.inner("Concat", x, d.constant(row), axis=0)
    else:
        exists = d.constant(d.rng.random(x.shape[-1]) < 0.6)
        marked = d.inner("Where", exists, x, d.constant(np.float32(math.nan)))
    if d.chance(0.5):
        return d.end("Transpose", marked, perm=[*range(x.rank)][::-1])
    return d.node("Where", d.inner("IsNaN", marked), d.constant(np.float32(0.5)), marked)


@draws("Add", often=1.5)
def biased(d: Drawing) -> object:
    """A table with large numbers in some places added, as in spatial encodings, before a function
    that is finite at infinities.
    """
    x = d.floats(2, 3, 4)
    sign = d.choose((-1, -1, 1))
    table = d.rng.normal(0, 1, x.shape[-1]).astype(np.float32)
    table[d.rng.random(table.shape) < 0.3] = sign * d.choose(SIZES)
    summed = ("Add", x, d.constant(table))
    if d.chance(EXPOSED):
        return d.node(*summed)
    bounding = ("Sigmoid", "Relu", "Exp") if sign < 0 else ("Sigmoid", "Tanh")
    return d.node(d.choose(bounding), d.inner(*summed))


@draws("Pad", often=1.5)
def framed(d: Drawing) -> object:
    """A frame of large numbers before a maximum or minimum of windows or rows."""
    x = d.floats(4)
    sign = d.choose((-1, -1, 1))
    name = "constant_value" if d.opset > 10 else "value"
    pads = [0, 0, *(d.integer(0, 1) for _ in range(2)), 0, 0, *(d.integer(0, 1) for _ in range(2))]
    padding = {"mode": "constant", "pads": pads, name: np.float32(sign * d.choose(SIZES))}
    if d.chance(EXPOSED):
        return d.node("Pad", x, **padding)
    wide = d.inner("Pad", x, **padding)
    if sign < 0 and min(wide.shape[2:]) > 1 and d.chance(0.6):
        return d.node("MaxPool", wide, kernel_shape=[2, 2], strides=d.choose(([1, 1], [2, 2])))
    return d.node("ReduceMax" if sign < 0 else "ReduceMin", wide, axes=[2, 3], keepdims=1)
