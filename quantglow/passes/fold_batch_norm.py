"""BatchNormalization into the weights before it.

Only while nothing is fused behind the sum: folding under a fused activation is silently wrong.
"""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.contraction import Contraction
from quantglow.ops.normalization import BatchNormalization
from quantglow.passes.batch_norm_constants import scale_and_shift
from quantglow.passes.constants import absorbs
from quantglow.passes.scaled import with_affine_result


@rewrite_pass("fold-batch-norm")
def fold_batch_norm(node: Node, uses: Uses) -> Node | None:
    """BN(Conv(x, w, b)) -> Conv(x, w*s, (b - mean)*s + beta), s = gamma / sqrt(var + eps)"""
    if not isinstance(node, BatchNormalization):
        return None
    producer = node.x
    if not isinstance(producer, Contraction) or not absorbs(producer, node, uses):
        return None
    constants = scale_and_shift(node)
    if constants is None:
        return None
    return with_affine_result(producer, node.name, *constants, uses)
