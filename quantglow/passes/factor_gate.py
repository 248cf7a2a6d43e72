"""A value added to itself times a gate: one product instead of two passes over an image."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Mul
from quantglow.passes.constants import float_constant
from quantglow.passes.factors import partner
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("factor-gate")
def factor_gate(node: Node, uses: Uses) -> Node | None:
    """x + x * g -> x * (g + 1) where g is smaller than x, as the gate of a squeeze-excite is"""
    if not isinstance(node, Add) or not plain(node):
        return None
    for product, value in ((node.y, node.x), (node.x, node.y)):
        if not isinstance(product, Mul) or not plain(product) or not uses.only(node, product):
            continue
        for x, gate in partner(product):
            if x is value and x.type == node.type and gate.type.size < x.type.size:
                return Mul(name=node.name, x=x, y=_plus_one(node, gate, uses))
    return None


def _plus_one(node: Node, gate: Node, uses: Uses) -> Node:
    name = uses.fresh(f"{node.name}:gate")
    return Add(name=name, x=gate, y=float_constant(1.0, f"{node.name}:one", uses))
