"""Transpose of Transpose."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Transpose
from quantglow.passes.layout import is_identity, per_axis, permuted


@rewrite_pass("merge-transposes")
def merge_transposes(node: Node, uses: Uses) -> Node | None:
    """Transpose(Transpose(x, p), q) -> Transpose(x, p[q]), or x if nothing moves"""
    match node:
        case Transpose(x=Transpose(x=x, perm=first), perm=second) if not per_axis(x):
            perm = permuted(first, second)
            return x if is_identity(perm) else replace(node, x=x, perm=perm)
    return None
