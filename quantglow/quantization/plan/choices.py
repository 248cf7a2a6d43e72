"""The best of some scores: TopK and ArgMax, and what is made of their indices."""

from __future__ import annotations

from quantglow.graph.node import Constant, Node
from quantglow.ops import Elementwise, Reshape, Transpose
from quantglow.ops.indexing import Gather, TopK


def scores_of(node: Node) -> Node | None:
    """The scores that a node chooses from, or None.

    A choice is TopK, arithmetic on the indices that it gives, or a Gather at these.
    """
    if isinstance(node, TopK):
        return node.x
    if isinstance(node, Gather) and _from_indices(node.indices) is not None:
        return node.x
    return _from_indices(node) if isinstance(node, Elementwise) else None


def _from_indices(node: Node) -> Node | None:
    """The scores behind indices, which may have been moved and computed with."""
    node = behind_views(node)
    if isinstance(node, TopK):
        return node.x
    is_integer = isinstance(node, Elementwise) and not node.type.dtype.is_float
    computed = [o for o in node.operands if not isinstance(o, Constant)] if is_integer else []
    return _from_indices(computed[0]) if len(computed) == 1 else None


def behind_views(node: Node) -> Node:
    """The node whose elements ``node`` only moves."""
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return node
