"""Move Reshapes below element-wise operators, to meet other Reshapes."""

from __future__ import annotations

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.quantization import Dequantize, Quantize, Rescale, Table
from quantglow.ops.shape import Reshape
from quantglow.ops.unary import Unary
from quantglow.passes.layout import Axes, derived, per_axis, reshaped


@rewrite_pass("sink-reshape")
def sink_reshape(node: Node, uses: Uses) -> Node | None:
    """f(Reshape(x)) -> Reshape(f(x)) for element-wise f, Constants reshaped along"""
    made = above_reshape(node, uses)
    if made is None:
        return None
    return Reshape(name=uses.fresh(derived(node.name, ":r")), x=made, shape=node.type.shape)


def above_reshape(node: Node, uses: Uses) -> Node | None:
    """The element-wise node on operands without the Reshape."""
    match node:
        case Unary() | Quantize() | Dequantize() | Rescale() | Table():
            x, *others = node.operands
            if isinstance(x, Reshape) and not per_axis(x) and not per_axis(node):
                return node.with_operands((x.x, *others))
        case Binary(x=Reshape(x=x) as left, y=Reshape(x=y) as right):
            if x.type.shape == y.type.shape and left.shape == right.shape:
                return node.with_operands((x, y))
        case Binary(x=Reshape(x=x) as moved, y=Constant() as c):
            other = unreshaped(c, moved, node.type.shape, uses)
            return None if other is None else node.with_operands((x, other))
        case Binary(x=Constant() as c, y=Reshape(x=y) as moved):
            other = unreshaped(c, moved, node.type.shape, uses)
            return None if other is None else node.with_operands((other, y))
    return None


def unreshaped(c: Constant, moved: Reshape, result: Axes, uses: Uses) -> Node | None:
    """The Constant as it broadcasts to the shape before the Reshape."""
    before, after = moved.x.type.shape, moved.shape
    if after != result or c.type.rank > len(after):
        return None
    if c.type.size == 1:
        return c if c.type.rank <= len(before) else reshaped(c, (), uses)
    if c.type.shape[-1] == c.type.size and before and before[-1] == after[-1]:
        return reshaped(c, c.type.shape[-1:], uses)
    if [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    sizes = (1,) * (len(after) - c.type.rank) + c.type.shape
    real = iter([size for size, d in zip(sizes, after, strict=True) if d != 1])
    return reshaped(c, tuple(1 if d == 1 else next(real) for d in before), uses)
