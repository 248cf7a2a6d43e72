"""The Add that ends a residual block, into the convolution before it."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.binary import Add
from quantglow.ops.convolution import Conv
from quantglow.passes.constants import absorbs, is_float, is_infinite


@rewrite_pass("fuse-residual")
def fuse_residual(node: Node, uses: Uses) -> Node | None:
    """Add(r, Conv(x)) -> Conv(x, residual=r) with the bounds of the Add.

    If both operands are convolutions, the right one takes the left one as its residual: a graph
    computes operands in order, so the left one is already there.  A Constant has the shape of the
    result at batch 1 only, and int8 must be the same at all.
    """
    if not isinstance(node, Add) or node.out is not None:
        return None
    for conv, other in ((node.y, node.x), (node.x, node.y)):
        if not isinstance(conv, Conv) or not absorbs(conv, node, uses) or conv is other:
            continue
        is_alike = conv.type.shape == other.type.shape and not isinstance(other, Constant)
        if is_alike and is_float(other) and not is_infinite(other):
            return replace(conv, name=node.name, residual=other, low=node.low, high=node.high)
        declined(node, f"{other.name!r} is broadcast, constant, no float or infinite")
    return None
