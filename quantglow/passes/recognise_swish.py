"""Swish (SiLU) written as a product."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Mul
from quantglow.ops.unary import Sigmoid, Swish
from quantglow.passes.factors import factors, partner
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("recognise-swish")
def recognise_swish(node: Node, uses: Uses) -> Node | None:
    """x * Sigmoid(a * x) -> Swish(x, alpha=a)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node):
        if not isinstance(gate, Sigmoid):
            continue
        if gate.x is x:
            return Swish(name=node.name, x=x)
        alpha, inside = factors(gate.x)
        if len(inside) == 1 and inside[0] is x:
            return Swish(name=node.name, x=x, alpha=alpha)
    return None
