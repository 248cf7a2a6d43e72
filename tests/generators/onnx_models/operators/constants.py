"""Operators whose results do not depend on computed values."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests.generators.onnx_models.drawing import DRAWN, FLOAT, INTEGER, Drawing
from tests.generators.onnx_models.operators.family import draws


@draws("Constant")
def constant(d: Drawing) -> object:
    if d.chance(0.3):
        return d.node("Constant", value_ints=[d.integer(-3, 3) for _ in range(d.integer(1, 4))])
    array = d.rng.normal(0, 1, d.shape(1, 2, 3)).astype(np.float32)
    return d.node("Constant", value=numpy_helper.from_array(array))


@draws("ConstantOfShape")
def filled(d: Drawing) -> object:
    value = helper.make_tensor("value", d.choose((FLOAT, INTEGER)), [1], [d.integer(-2, 2)])
    shape = d.constant(np.array(d.shape(1, 2, 3), np.int64))
    return d.node("ConstantOfShape", shape, value=value)


@draws("Range")
def sequence(d: Drawing) -> object:
    start, step = d.integer(-5, 5), d.choose((1, 2, -1, -3))
    ends = (start, start + step * d.integer(1, 9), step)
    return d.node("Range", *(d.constant(np.int64(n)) for n in ends))


@draws("Shape", "Size", often=0.5)
def extent(d: Drawing) -> object:
    x = d.of(DRAWN)
    if d.chance(0.4):
        return d.node("Size", x)
    bounds = d.some({"start": (0, 1, -2), "end": (1, 2, -1)}) if d.opset >= 15 else {}
    return d.node("Shape", x, **bounds)


@draws("EyeLike")
def diagonal(d: Drawing) -> object:
    return d.node("EyeLike", d.floats(2), **d.some({"k": (-1, 1, 2), "dtype": (FLOAT, INTEGER)}))
