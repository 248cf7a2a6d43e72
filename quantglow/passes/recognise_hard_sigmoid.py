"""HardSigmoid written as a clipped sum."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Mul
from quantglow.ops.unary import Clip, HardSigmoid
from quantglow.passes.constants import close
from quantglow.passes.factors import factors, plus_scalar
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("recognise-hard-sigmoid")
def recognise_hard_sigmoid(node: Node, uses: Uses) -> Node | None:
    """Clip(x + b, 0, h) * (1/h) -> HardSigmoid(x, alpha=1/h, beta=b/h)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    scale, others = factors(node)
    match others:
        case [Clip(x=shifted, low=0.0, high=high) as clip] if close(scale * high, 1.0):
            found = plus_scalar(shifted)
            if found is None or clip.type != node.type:
                return None
            return HardSigmoid(name=node.name, x=found[0], alpha=scale, beta=found[1] * scale)
    return None
