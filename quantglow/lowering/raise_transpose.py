"""Transposes move above element-wise primitives: there they are views, and the element-wise kernel
writes its result in the consumer's layout."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.lowering.rules import tag
from quantglow.ops import Elementwise, Table, Transpose


@rewrite_pass("raise-transpose")
def raise_transpose(node: Node, uses: Uses) -> Node | None:
    """Transpose(Elementwise(x)) -> Elementwise(Transpose(x)), the same for Table; for values with
    one reader only"""
    if not isinstance(node, Transpose) or not isinstance(node.x, Elementwise | Table):
        return None
    inner = node.x
    if not uses.only(node, inner):
        return None
    if isinstance(inner, Elementwise) and all(a.type.shape == inner.type.shape for a in inner.args):
        args = tuple(_transposed(node, a, f"operand{i}") for i, a in enumerate(inner.args))
        return replace(inner, name=node.name, args=args)
    if isinstance(inner, Table):
        return replace(inner, name=node.name, x=_transposed(node, inner.x, "operand"))
    return None


def _transposed(node: Transpose, operand: Node, role: str) -> Transpose:
    return Transpose(name=tag(node, role), x=operand, perm=node.perm)
