"""Slice of Slice, and Slice of Concat."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Concat, Slice


@rewrite_pass("simplify-slice")
def simplify_slice(node: Node, uses: Uses) -> Node | None:
    """x[a:][b:] -> x[a+b:]; Concat(a, b)[part of a] -> a[part]"""
    match node:
        case Slice(x=Slice() as inner):
            return slice_of_slice(node, inner)
        case Slice(x=Concat() as joined) if node.type.size:
            return slice_of_part(node, joined)
    return None


def slice_of_slice(outer: Slice, inner: Slice) -> Node:
    """Element i is ``x[inner.start + inner.step * (outer.start + outer.step * i)]``."""
    axes = range(len(outer.starts))
    starts = tuple(inner.starts[i] + inner.steps[i] * outer.starts[i] for i in axes)
    steps = tuple(inner.steps[i] * outer.steps[i] for i in axes)
    return replace(outer, x=inner.x, starts=starts, steps=steps)


def slice_of_part(node: Slice, joined: Concat) -> Node | None:
    """The Slice on the only part it reads from."""
    axis = joined.axis
    ends = (
        node.starts[axis],
        node.starts[axis] + (node.sizes[axis] - 1) * node.steps[axis],
    )
    offset = 0
    for part in joined.parts:
        size = part.type.shape[axis]
        if all(offset <= end < offset + size for end in ends):
            starts = list(node.starts)
            starts[axis] -= offset
            return replace(node, x=part, starts=tuple(starts))
        offset += size
    return None
