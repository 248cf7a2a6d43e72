"""``f(Transpose(x)) -> Transpose(f'(x))``: move Transposes down, to meet their inverses.

A Transpose to channels-last is never moved down (``hoist_transpose`` moves it up), so that
element-wise ops end in NHWC on whichever side of them the Transpose was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.pooling import Reduce
from quantglow.ops.primitives import Elementwise
from quantglow.ops.selection import PRelu
from quantglow.ops.shape import Concat, Transpose
from quantglow.passes.layout import (
    Axes,
    derived,
    inverse,
    is_identity,
    moved,
    per_axis,
    to_channels_first,
    to_channels_last,
    transposed,
)

Moved = tuple[Node, Axes]
"""The op on untransposed operands, and the permutation its result still needs."""


@rewrite_pass("sink-transpose")
def sink_transpose(node: Node, uses: Uses) -> Node | None:
    """f(Transpose(x)) -> Transpose(f'(x)) for element-wise f, Concat, Slice, Pad, reductions, …"""
    found = moved_up(node, uses)
    if found is None:
        return None
    made, perm = found
    if is_identity(perm):
        return made
    return Transpose(name=uses.fresh(derived(node.name, ":nchw")), x=made, perm=perm)


def moved_up(node: Node, uses: Uses) -> Moved | None:
    """The node moved above the Transpose that feeds it."""
    if isinstance(node, Binary | Elementwise):
        return moved_elements(node, uses)
    if isinstance(node, Concat):
        return moved_concat(node, uses)
    t = node.operands[0] if node.operands else node
    if not sinks(t) or per_axis(node):
        return None
    match node:
        case PRelu(slope=Constant() as slope):
            beside_x = transposed(slope, inverse(t.perm), uses)
            return None if beside_x is None else (node.with_operands((t.x, beside_x)), t.perm)
        case PRelu():
            return None
        case Reduce():
            return moved_reduce(node, t)
    changes = node.permuted(inverse(t.perm))
    if changes is None:
        return None
    # Operands behind x are parameters of elements or channels, which do not move.
    return node.with_operands((t.x, *node.operands[1:]), **changes), t.perm


def sinks(node: Node) -> TypeGuard[Transpose]:
    """Whether the node is a Transpose that moves down."""
    return isinstance(node, Transpose) and not to_channels_last(node.perm) and not per_axis(node)


def moved_reduce(node: Reduce, t: Transpose) -> Moved:
    """The reduction before the Transpose: its axes are renamed, the result permuted."""
    axes = tuple(sorted(t.perm[axis] for axis in node.axes))
    made: Node = replace(node, x=t.x, axes=axes)  # type: ignore[call-arg]
    if node.keepdims:
        return made, t.perm
    kept = [axis for i, axis in enumerate(t.perm) if i not in node.axes]
    return made, tuple(sorted(kept).index(axis) for axis in kept)


def moved_elements(node: Binary | Elementwise, uses: Uses) -> Moved | None:
    """The node on operands before the Transpose that one of them is."""
    found = aligned(node.operands, node.type.rank, uses)
    if found is None:
        return None
    operands, perm = found
    return node.with_operands(operands), perm


def moved_concat(node: Concat, uses: Uses) -> Moved | None:
    found = aligned(node.parts, node.type.rank, uses)
    if found is None:
        return None
    parts, perm = found
    return replace(node, parts=parts, **node.permuted(inverse(perm))), perm


def aligned(
    operands: Sequence[Node], rank: int, uses: Uses
) -> tuple[tuple[Node, ...], Axes] | None:
    """The operands before a Transpose that one of them is.

    A Transpose back from channels-first is worth a Transpose of the other operands: it brings
    them into the layout of the convolutions.
    """
    candidates: list[Transpose] = [o for o in operands if sinks(o) and len(o.perm) == rank]
    if not candidates:
        return None
    perm = next((c.perm for c in candidates if to_channels_first(c.perm)), candidates[0].perm)
    found = [beside(o, perm, uses) for o in operands]
    if any(f is None for f in found):
        return None
    return tuple(f for f in found if f is not None), perm


def beside(operand: Node, perm: Axes, uses: Uses) -> Node | None:
    """An operand as it stands beside ``x`` of ``Transpose(x, perm)``.

    An operand that is another Transpose stays, else the two could trade places for ever.
    """
    if isinstance(operand, Transpose | Constant) or per_axis(operand):
        return transposed(operand, inverse(perm), uses)
    return moved(operand, inverse(perm), uses) if to_channels_first(perm) else None
