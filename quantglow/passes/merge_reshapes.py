"""Reshape of Reshape."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Reshape


@rewrite_pass("merge-reshapes")
def merge_reshapes(node: Node, uses: Uses) -> Node | None:
    """Reshape(Reshape(x)) -> Reshape(x), or x if it has the shape"""
    match node:
        case Reshape(x=Reshape(x=x)):
            return x if x.type.shape == node.shape else replace(node, x=x)
    return None
