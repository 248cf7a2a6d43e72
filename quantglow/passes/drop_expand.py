"""Leave repetitions to the operator that reads them."""

from __future__ import annotations

from dataclasses import replace

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
        case Binary(x=x, y=Constant() as c) if (y := once(c, x, uses)) is not c:
            return node.with_operands((x, y))
        case Binary(x=Constant() as c, y=y) if (x := once(c, y, uses)) is not c:
            return node.with_operands((x, y))
    return None


def once(c: Constant, other: Node, uses: Uses) -> Constant:
    """A float Constant without its repetitions along axes that the other operand has as long.

    So it does not matter whether samples, or rows that are channels of one sample, are repeated.
    """
    value, rank = c.value, c.type.rank
    if not is_float(c) or rank > other.type.rank:
        return c
    for axis, size in enumerate(c.type.shape):
        first = value.take([0], axis)
        is_long = size > 1 and size == other.type.shape[axis - rank]
        if is_long and bool((value == first).all()):
            value = first
    if value is c.value:
        return c
    return replace(c, name=uses.fresh(derived(c.name, ":first")), value=value)
