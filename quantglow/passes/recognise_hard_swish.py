"""HardSwish written as a product."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Mul
from quantglow.ops.unary import Clip, HardSigmoid, HardSwish
from quantglow.passes.constants import close
from quantglow.passes.factors import added_to, partner
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("recognise-hard-swish")
def recognise_hard_swish(node: Node, uses: Uses) -> Node | None:
    """x * HardSigmoid(x; 1/6, 1/2), x * Clip(x + 3, 0, 6) / 6 -> HardSwish(x)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node):
        if gate_of(gate) is x:
            return HardSwish(name=node.name, x=x)
    for x, gate in partner(node, 1 / 6):
        if clipped_sum(gate) is x:
            return HardSwish(name=node.name, x=x)
    return None


def gate_of(node: Node) -> Node | None:
    """``x`` of ``HardSigmoid(x; 1/6, 1/2)``"""
    if isinstance(node, HardSigmoid) and close(node.alpha, 1 / 6) and close(node.beta, 0.5):
        return node.x
    return None


def clipped_sum(node: Node) -> Node | None:
    """``x`` of ``Clip(x + 3, 0, 6)``"""
    match node:
        case Clip(x=shifted, low=0.0, high=6.0):
            return added_to(shifted, 3.0)
    return None
