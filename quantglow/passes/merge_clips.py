"""Relu, Clip, Max and Min with scalars: one Clip for a chain of them."""

from __future__ import annotations

import math

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Max, Min
from quantglow.ops.unary import Clip, Relu
from quantglow.passes.constants import scalar_of
from quantglow.passes.simplify_arithmetic import plain

Bounds = tuple[float, float]


@rewrite_pass("merge-clips")
def merge_clips(node: Node, uses: Uses) -> Node | None:
    """Clip(Clip(x)) -> Clip(x); Max(x, c) -> Clip(x, c, inf); Clip(x, 0, inf) -> Relu(x)"""
    outer = bounds_of(node)
    if outer is None:
        return None
    x = node.operands[0]
    inner = bounds_of(x)
    if inner is not None:
        return clip(node.name, x.operands[0], narrowed(inner, outer))
    if isinstance(node, Relu) or (isinstance(node, Clip) and outer != (0.0, math.inf)):
        return None
    return clip(node.name, x, outer)


def bounds_of(node: Node) -> Bounds | None:
    """(low, high) of a node that clips its first operand."""
    match node:
        case Relu():
            return 0.0, math.inf
        case Clip(low=low, high=high):
            return low, high
        case Max(x=x, y=y) if (c := scalar_of(y)) is not None and x.type == node.type:
            return (c, math.inf) if plain(node) and not math.isnan(c) else None
        case Min(x=x, y=y) if (c := scalar_of(y)) is not None and x.type == node.type:
            return (-math.inf, c) if plain(node) and not math.isnan(c) else None
    return None


def narrowed(inner: Bounds, outer: Bounds) -> Bounds:
    """The bounds of clipping to ``inner`` and then to ``outer``."""
    low, high = outer
    return min(max(inner[0], low), high), min(max(inner[1], low), high)


def clip(name: str, x: Node, bounds: Bounds) -> Node:
    if bounds == (0.0, math.inf):
        return Relu(name=name, x=x)
    return Clip(name=name, x=x, low=bounds[0], high=bounds[1])
