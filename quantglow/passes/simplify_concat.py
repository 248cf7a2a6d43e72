"""Concat of Concat, and Concat of neighbouring Slices."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.shape import Concat, Slice
from quantglow.passes.layout import derived


@rewrite_pass("simplify-concat")
def simplify_concat(node: Node, uses: Uses) -> Node | None:
    """Concat(Concat(a, b), c) -> Concat(a, b, c); Concat(x[:k], x[k:]) -> x"""
    if not isinstance(node, Concat):
        return None
    parts: list[Node] = []
    for part in flattened(node, uses):
        joined = neighbours(parts[-1], part, node.axis, uses) if parts else None
        if joined is None:
            parts.append(part)
        else:
            parts[-1] = joined
    if tuple(parts) == node.parts:
        return None
    return parts[0] if len(parts) == 1 else replace(node, parts=tuple(parts))


def flattened(node: Concat, uses: Uses) -> list[Node]:
    """The parts, those of inner Concats that nobody else reads in their place."""
    parts: list[Node] = []
    for part in node.parts:
        inner = isinstance(part, Concat) and part.axis == node.axis and uses.single(part)
        parts.extend(part.operands if inner else (part,))
    return parts


def neighbours(a: Node, b: Node, axis: int, uses: Uses) -> Node | None:
    """Two Slices of step 1 that follow each other along ``axis``, as one (or as their source)."""
    if not (isinstance(a, Slice) and isinstance(b, Slice) and a.x is b.x):
        return None
    if {*a.steps, *b.steps} != {1} or a.starts[axis] + a.sizes[axis] != b.starts[axis]:
        return None
    if without(a.starts, axis) != without(b.starts, axis):
        return None
    sizes = (*a.sizes[:axis], a.sizes[axis] + b.sizes[axis], *a.sizes[axis + 1 :])
    if sizes == a.x.type.shape:
        return a.x
    return replace(a, name=uses.fresh(derived(a.name, ":joined")), sizes=sizes)


def without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]
