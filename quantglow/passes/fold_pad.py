"""Pad into the padding of the operator behind it."""

from __future__ import annotations

import math
from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.convolution import Conv
from quantglow.ops.pooling import AveragePool, MaxPool, Pool
from quantglow.ops.shape import Pad
from quantglow.ops.unary import Clip, Relu
from quantglow.ops.windows import Pads


@rewrite_pass("fold-pad")
def fold_pad(node: Node, uses: Uses) -> Node | None:
    """Conv(Pad(x)) -> Conv(x, pads + …) for zeros; pools where their own padding means the same"""
    match node:
        case Conv(x=Pad() as pad):
            return padded(node, pad) if spatial(pad) else declined(node, NOT_SPATIAL)
        case AveragePool(x=Pad() as pad):
            if node.ceil_mode or any(node.pads) or node.out is not None or not fits(node, pad):
                return declined(node, "its own padding would be another")
            return padded(replace(node, count_include_pad=True), pad)
        case MaxPool(x=Pad() as pad) if fits(node, pad) and neutral_for_max(pad):
            return None if node.ceil_mode else replace(node, x=pad.x, pads=added(node.pads, pad))
    return None


NOT_SPATIAL = "not only H and W are padded"


def padded(node: Conv | AveragePool, pad: Pad) -> Node | None:
    """The node with the pads of ``pad``, if these are zeros."""
    if pad.value != 0:
        return declined(node, f"{pad.name!r} pads with {pad.value:g}")
    return replace(node, x=pad.x, pads=added(node.pads, pad))


def spatial(pad: Pad) -> bool:
    """Whether only H and W are padded."""
    return not any((pad.before[0], pad.before[3], pad.after[0], pad.after[3]))


def fits(node: Pool, pad: Pad) -> bool:
    """Whether every window keeps at least one element that is not padding."""
    pads = added(node.pads, pad)
    reach = [node.dilations[i] * (node.kernel[i] - 1) for i in (0, 1)]
    plain = node.dilations == (1, 1)
    return spatial(pad) and plain and all(pads[i] <= reach[i % 2] for i in range(4))


def neutral_for_max(pad: Pad) -> bool:
    """Padding with -inf; or with zeros around values that are never negative."""
    if pad.value == -math.inf:
        return True
    x = pad.x
    never_negative = isinstance(x, Relu) or (isinstance(x, Clip) and x.low >= 0)
    return pad.value == 0 and never_negative


def added(pads: Pads, pad: Pad) -> Pads:
    top, left, bottom, right = pads
    (_, *before, _), (_, *after, _) = pad.before, pad.after
    return top + before[0], left + before[1], bottom + after[0], right + after[1]
