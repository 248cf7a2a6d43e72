"""Constant scales and shifts behind a contraction, into its weights and bias."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.ops.contraction import Contraction
from quantglow.passes.constants import absorbs, channel_values
from quantglow.passes.scaled import with_affine_result
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("fold-arithmetic")
def fold_arithmetic(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w, b) * c -> Conv(x, w*c, b*c); Conv(x, w, b) + c -> Conv(x, w, b + c)"""
    if not isinstance(node, Add | Mul) or not plain(node):
        return None
    return fold_into_producer(node, uses)


def fold_into_producer(node: Binary, uses: Uses) -> Node | None:
    producer = node.x
    if not isinstance(producer, Contraction) or not absorbs(producer, node, uses):
        return None
    c = channel_values(node.y, producer.type.shape[-1], producer.type.rank)
    if c is None:
        return None
    scale, shift = (c, None) if isinstance(node, Mul) else (None, c)
    return with_affine_result(producer, node.name, scale, shift, uses)
