"""Transposes that move no data."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Reshape, Transpose
from quantglow.passes.layout import moves_only_ones, per_axis


@rewrite_pass("transpose-to-reshape")
def transpose_to_reshape(node: Node, uses: Uses) -> Node | None:
    """Transpose(x, p) -> Reshape(x) where p moves only axes of size 1"""
    match node:
        case Transpose(x=x, perm=perm) if not per_axis(x) and moves_only_ones(x.type.shape, perm):
            return Reshape(name=node.name, x=x, shape=node.type.shape)
    return None
