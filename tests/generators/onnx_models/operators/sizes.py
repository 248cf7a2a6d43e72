"""Sizes that models compute with as with any other value."""

from __future__ import annotations

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, Drawing
from tests.generators.onnx_models.operators.family import draws


@draws("Shape", "Size", often=2)
def size_as_value(d: Drawing) -> object:
    x = d.floats(1, 2, 3, 4)
    if d.chance(0.2):
        size, value = d.inner("Size", x), x.size
    else:
        axis = d.integer(0, x.rank - 1)
        place = d.constant(np.int64(axis))
        size, value = d.inner("Gather", d.inner("Shape", x), place), x.shape[axis]
    if d.chance(0.3):
        expected = d.constant(np.int64(d.choose((1, value, value + 1))))
        return d.node("Where", d.inner("Equal", size, expected), x, d.inner("Neg", x))
    if d.chance(0.3):
        operator = d.choose(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"))
        operands = size, d.constant(np.int64(2))
        size = d.inner(operator, *(operands if d.chance(0.7) else operands[::-1]))
    number = d.inner("Cast", size, to=FLOAT)
    return d.node(d.choose(("Mul", "Add", "Sub", "Max")), x, number)
