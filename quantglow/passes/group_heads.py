"""Products with keys or values that are repeated, one copy for each head of queries."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.convolution import MatMul
from quantglow.ops.shape import Expand, Reshape, Transpose
from quantglow.passes.layout import derived, reshaped
from quantglow.symbolic.shapes import surely_equal
from quantglow.symbolic.size import is_free

SWAPPED = (0, 1, 3, 2)


@rewrite_pass("group-heads")
def group_heads(node: Node, uses: Uses) -> Node | None:
    """MatMul(x, y repeated) -> MatMul(x, y), the heads that share y being rows of one product"""
    match node:
        case MatMul(y=Reshape(x=Expand() as wide) as joined, out=None):
            return _grouped(node, joined, wide, False, uses)
        case MatMul(y=Transpose(x=Reshape(x=Expand() as wide) as joined, perm=perm), out=None):
            return _grouped(node, joined, wide, True, uses) if perm == SWAPPED else None
    return None


def _grouped(node: MatMul, joined: Reshape, wide: Expand, swapped: bool, uses: Uses) -> Node | None:
    x, shape = node.x.type, wide.type.shape
    if len(shape) != 5 or x.rank != 4:
        return None
    batch, shared, copies, *inner = shape
    small = (batch, shared, 1, *inner)
    if is_free(copies) or copies < 2 or not surely_equal(wide.x.type.shape, small):
        return None
    heads = shared * copies
    if not surely_equal(joined.shape, (batch, heads, *inner)):
        return None
    if not surely_equal(x.shape[:2], (batch, heads)):
        return declined(node, "x does not have the heads of the repeated operand")
    rows = reshaped(node.x, (batch, shared, copies * x.shape[2], x.shape[3]), uses)
    once = reshaped(wide.x, (batch, shared, *inner), uses)
    if swapped:
        once = Transpose(name=uses.fresh(derived(node.name, ":t")), x=once, perm=SWAPPED)
    product = MatMul(name=node.name, x=rows, y=once)
    return Reshape(name=uses.fresh(derived(node.name, ":r")), x=product, shape=node.type.shape)
