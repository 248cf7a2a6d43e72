"""Transposes moved below Reshapes that treat the moved axes as blocks.

The channel shuffle (Reshape, Transpose, Reshape in NCHW) becomes the same in NHWC this way.
"""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Reshape, Transpose
from quantglow.passes.blocks import (
    Block,
    back_to_target,
    blocks_of,
    consecutive,
    ranks,
    spread,
    target_order,
)
from quantglow.passes.layout import (
    Axes,
    derived,
    is_identity,
    permuted,
    to_channels_first,
    to_channels_last,
)
from quantglow.passes.sink_transpose import sinks


@rewrite_pass("sink-transpose-below-reshape")
def sink_transpose_below_reshape(node: Node, uses: Uses) -> Node | None:
    """Reshape(Transpose(x)) -> Transpose(Reshape(x)) where blocks of axes move as a whole."""
    if not (isinstance(node, Reshape) and sinks(node.x) and node.type.size):
        return None
    t = node.x
    place = ranks(t.x.type.shape, t.perm)
    blocks = blocks_of(t.type.shape, node.shape)
    if not all(consecutive(tuple(sorted(place[a] for a in b.source))) for b in blocks):
        return None
    ordered = tuple(sorted(blocks, key=lambda b: min(place[a] for a in b.source)))
    order = best_order(ordered, len(node.shape))
    perm = back_to_target(order)
    rising = all(consecutive(tuple(place[a] for a in b.source)) for b in blocks)
    if to_channels_last(perm) or not (rising or to_channels_first(perm)):
        return None
    if rising and is_identity(perm):
        return replace(node, x=t.x)
    x = t.x if rising else shuffled(node, t, ordered, uses)
    made = replace(node, x=x, shape=permuted(node.shape, order))
    return Transpose(name=uses.fresh(derived(node.name, ":nchw")), x=made, perm=perm)


def best_order(ordered: tuple[Block, ...], rank: int) -> Axes:
    """Target axes in the order of x; axes of size 1 go where channels come out last, if they can,
    and never where the Transpose left over would climb again."""
    choices = [target_order(ordered, rank, follow) for follow in (True, False)]
    choices.sort(key=lambda order: to_channels_last(back_to_target(order)))
    return next((c for c in choices if to_channels_first(back_to_target(c))), choices[0])


def shuffled(node: Node, t: Transpose, ordered: tuple[Block, ...], uses: Uses) -> Node:
    """The axes within each block put in the order that ``t`` gave them, blocks left in place."""
    real = tuple(t.perm[axis] for block in ordered for axis in block.source)
    perm = spread(real, t.x.type.shape)
    return Transpose(name=uses.fresh(derived(node.name, ":shuffle")), x=t.x, perm=perm)
