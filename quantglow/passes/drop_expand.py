"""Leave repetitions to the operator that reads them."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.shape import Expand
from quantglow.symbolic.shapes import broadcast_shapes, surely_equal


@rewrite_pass("drop-expand")
def drop_expand(node: Node, uses: Uses) -> Node | None:
    """Binary(x, Expand(y)) -> Binary(x, y) where that repeats y as often"""
    match node:
        case Binary(x=x, y=Expand(x=y)):
            shape = broadcast_shapes(x.type.shape, y.type.shape)
            return node.with_operands((x, y)) if surely_equal(shape, node.type.shape) else None
    return None
