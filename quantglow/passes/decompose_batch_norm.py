"""BatchNormalization that no contraction took."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Mul
from quantglow.ops.normalization import BatchNormalization
from quantglow.passes.batch_norm_constants import scale_and_shift
from quantglow.passes.constants import float_constant


@rewrite_pass("decompose-batch-norm")
def decompose_batch_norm(node: Node, uses: Uses) -> Node | None:
    """BN(x) -> x * s + (beta - mean * s), s = gamma / sqrt(var + eps)"""
    if not isinstance(node, BatchNormalization):
        return None
    constants = scale_and_shift(node)
    if constants is None:
        return None
    scale, shift = constants
    product = Mul(
        name=uses.fresh(f"{node.name}:scaled"),
        x=node.x,
        y=float_constant(scale, f"{node.name}:scale", uses),
    )
    return Add(name=node.name, x=product, y=float_constant(shift, f"{node.name}:shift", uses))
