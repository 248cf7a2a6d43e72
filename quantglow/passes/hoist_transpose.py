"""``Transpose(f(x)) -> f'(Transpose(x))`` for Transposes to channels-last: move them up."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.elementwise import Binary, PRelu, Unary
from quantglow.ops.shape import Pad, Reshape, Transpose
from quantglow.passes.blocks import blocks_of, consecutive, spread
from quantglow.passes.layout import (
    Axes,
    derived,
    is_identity,
    permuted,
    to_channels_last,
    transposed,
)


@rewrite_pass("hoist-transpose")
def hoist_transpose(node: Node, uses: Uses) -> Node | None:
    """Transpose(f(x)) -> f'(Transpose(x)) where only x is real data and f has one reader."""
    if not (isinstance(node, Transpose) and to_channels_last(node.perm) and uses.single(node.x)):
        return None
    match node.x:
        case Unary(x=x) as f:
            return f.with_operands((above(node, x, uses),))
        case PRelu(x=x, slope=Constant() as slope) as f:
            moved = transposed(slope, node.perm, uses, force=False)
            return None if moved is None else f.with_operands((above(node, x, uses), moved))
        case Pad(x=x, before=before, after=after) as f:
            pads = permuted(before, node.perm), permuted(after, node.perm)
            return replace(f, x=above(node, x, uses), before=pads[0], after=pads[1])
        case Binary() as f:
            return hoisted_binary(f, node.perm, uses)
        case Reshape() as f:
            return hoisted_reshape(f, node, uses)
    return None


def above(t: Transpose, x: Node, uses: Uses) -> Node:
    """The Transpose on x; a Transpose there already is undone."""
    if isinstance(x, Transpose) and is_identity(permuted(x.perm, t.perm)):
        return x.x
    return Transpose(name=uses.fresh(derived(x.name, ":nhwc")), x=x, perm=t.perm)


def hoisted_binary(f: Binary, perm: Axes, uses: Uses) -> Node | None:
    """One operand may need a real Transpose, of the full rank; the other must not."""
    for data, other, in_order in ((f.x, f.y, True), (f.y, f.x, False)):
        if data.type.rank != len(perm) or isinstance(data, Constant):
            continue
        moved = transposed(other, perm, uses, force=False)
        if moved is not None:
            above_data = transposed(data, perm, uses, force=True)
            assert above_data is not None
            return f.with_operands((above_data, moved) if in_order else (moved, above_data))
    return None


def hoisted_reshape(f: Reshape, t: Transpose, uses: Uses) -> Node | None:
    """The blocks of axes that the Reshape forms are moved before it forms them."""
    if not f.type.size:
        return None
    position = {axis: i for i, axis in enumerate(a for a in t.perm if f.shape[a] != 1)}
    blocks = blocks_of(f.x.type.shape, f.shape)
    if not all(consecutive(tuple(position[a] for a in b.target)) for b in blocks):
        return None
    ordered = sorted(blocks, key=lambda b: position[b.target[0]])
    perm = spread(tuple(axis for b in ordered for axis in b.source), f.x.type.shape)
    x = f.x
    if not is_identity(perm):
        x = Transpose(name=uses.fresh(derived(f.name, ":nhwc")), x=x, perm=perm)
    return replace(f, x=x, shape=t.type.shape)
