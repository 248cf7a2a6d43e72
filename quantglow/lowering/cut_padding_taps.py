"""Convolutions without taps that see only padding, which wide dilations have on small images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.lowering.rules import tag
from quantglow.ops import Conv
from quantglow.symbolic.size import is_free


@dataclass(frozen=True)
class Taps:
    """The taps from ``first`` to before ``end`` along one axis, of ``count``."""

    first: int
    end: int
    count: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.end)


@rewrite_pass("cut-padding-taps")
def cut_padding_taps(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w) -> Conv(x, w[a:b, c:d]) with less padding, where the other taps see only that"""
    if not isinstance(node, Conv) or not isinstance(node.w, Constant) or not any(node.pads):
        return None
    if any(map(is_free, (*node.x.type.shape, *node.type.shape))):
        return None
    rows, columns = seen_taps(node, 0), seen_taps(node, 1)
    if rows.end - rows.first == rows.count and columns.end - columns.first == columns.count:
        return None
    if not np.isfinite(node.w.value).all():  # An infinite weight times padding is no number.
        return None
    w = replace(node.w, name=tag(node, "seen"), value=node.w.value[rows.slice, columns.slice])
    (top, left, bottom, right), (down, across) = node.pads, node.dilations
    pads = (
        top - rows.first * down,
        left - columns.first * across,
        bottom - (rows.count - rows.end) * down,
        right - (columns.count - columns.end) * across,
    )
    return replace(node, w=w, pads=pads)


def seen_taps(conv: Conv, axis: int) -> Taps:
    """The taps along an axis from the first to the last that see a pixel; all if none does."""
    size, results = conv.x.type.shape[1 + axis], conv.type.shape[1 + axis]
    count, dilation = conv.w.type.shape[axis], conv.dilations[axis]
    before, behind = conv.pads[axis], conv.pads[2 + axis]
    reach = (results - 1) * conv.strides[axis]
    starts = [tap * dilation - before for tap in range(count)]
    seen = [tap for tap, start in enumerate(starts) if start + reach >= 0 and start < size]
    if not seen:
        return Taps(0, count, count)
    # No padding becomes negative.
    first = min(seen[0], before // dilation)
    end = count - min(count - 1 - seen[-1], behind // dilation)
    return Taps(first, end, count)
