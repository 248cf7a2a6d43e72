"""Leave repetitions to the operator that reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.shape import Expand
from quantglow.passes.constants import is_float
from quantglow.passes.layout import derived
from quantglow.symbolic.shapes import broadcast_shapes, surely_equal


@rewrite_pass("drop-expand")
def drop_expand(node: Node, uses: Uses) -> Node | None:
    """Binary(x, Expand(y)) -> Binary(x, y) where that repeats y as often; the same of a Constant
    that is equal along an axis
    """
    match node:
        case Binary(x=x, y=Expand(x=y)):
            shape = broadcast_shapes(x.type.shape, y.type.shape)
            return node.with_operands((x, y)) if surely_equal(shape, node.type.shape) else None
        case Binary(x=x, y=Constant() as c) if (y := without_repetitions(c, x, uses)) is not c:
            return node.with_operands((x, y))
        case Binary(x=Constant() as c, y=y) if (x := without_repetitions(c, y, uses)) is not c:
            return node.with_operands((x, y))
    return None


def without_repetitions(c: Constant, other: Node, uses: Uses) -> Constant:
    """A float Constant, once along each axis along which it is equal and the other operand as long.

    Operators that look for a number or for values of channels find them at any batch: that of one
    sample may lack the axis of samples, so that other axes repeat the Constant.
    """
    value, rank = c.value, c.type.rank
    if not is_float(c) or rank > other.type.rank:
        return c
    for axis, size in enumerate(c.type.shape):
        if size < 2 or not surely_equal((size,), (other.type.shape[axis - rank],)):
            continue
        first = value.take([0], axis)
        if bool((value == first).all()) and bool((np.signbit(value) == np.signbit(first)).all()):
            value = first
    if value is c.value:
        return c
    return replace(c, name=uses.fresh(derived(c.name, ":first")), value=value)
