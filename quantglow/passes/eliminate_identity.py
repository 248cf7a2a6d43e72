"""Operators that return their operand."""

from __future__ import annotations

import math

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Binary, Div, Mul, Pow, Sub
from quantglow.ops.pooling import AveragePool, MaxPool, Reduce, ReduceMean
from quantglow.ops.quantization import Rescale
from quantglow.ops.resize import Resize
from quantglow.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from quantglow.ops.unary import Clip
from quantglow.passes.constants import scalar_of
from quantglow.passes.layout import is_identity


@rewrite_pass("eliminate-identity")
def eliminate_identity(node: Node, uses: Uses) -> Node | None:
    """f(x) -> x where f changes nothing: Reshape to the same shape, Pad by 0, x * 1, …"""
    if isinstance(node, Concat):
        return node.parts[0] if len(node.parts) == 1 else None
    x = node.operands[0] if node.operands else None
    if x is None:
        return None
    if isinstance(node, Reduce):
        return reduction_of_ones(node)
    if isinstance(node, Binary):
        return neutral(node)
    return x if x.type.surely_equals(node.type) and changes_nothing(node) else None


def changes_nothing(node: Node) -> bool:
    """Whether an op whose result has the type of its first operand returns that operand."""
    match node:
        case Reshape() | Expand() | Rescale() | Pad():
            return True
        case Transpose(perm=perm):
            return is_identity(perm)
        case Slice(steps=steps, sizes=sizes):
            return all(step > 0 or size <= 1 for step, size in zip(steps, sizes, strict=True))
        case Clip(low=low, high=high):
            return low == -math.inf and high == math.inf
        case AveragePool() | MaxPool():
            return node.kernel == node.strides == (1, 1) and not any(node.pads)
        case Resize(scales=scales):
            return scales == (1.0, 1.0)
    return False


def reduction_of_ones(node: Reduce) -> Node | None:
    """A reduction over axes of size 1 only removes them."""
    if any(node.x.type.shape[axis] != 1 for axis in node.axes):
        return None
    if isinstance(node, ReduceMean) and node.out is not None:
        return None
    if node.x.type.shape == node.type.shape:
        return node.x
    return Reshape(name=node.name, x=node.x, shape=node.type.shape)


def neutral(node: Binary) -> Node | None:
    """x + 0, x - 0, x * 1, x / 1, x ** 1, in float and without bounds."""
    if node.out is not None or node.low != -math.inf or node.high != math.inf:
        return None
    kept, other = node.x, scalar_of(node.y)
    if other is None and isinstance(node, Add | Mul):
        kept, other = node.y, scalar_of(node.x)
    unit = 0.0 if isinstance(node, Add | Sub) else 1.0
    if other != unit or not isinstance(node, Add | Sub | Mul | Div | Pow):
        return None
    return kept if kept.type == node.type else None
