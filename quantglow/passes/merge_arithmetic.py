"""Chains of constant arithmetic: at most one Mul, then one Add."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.passes.constants import float_constant
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("merge-arithmetic")
def merge_arithmetic(node: Node, uses: Uses) -> Node | None:
    """x + a + b -> x + (a + b); x * a * b -> x * (a * b); (x + a) * b -> x * b + a * b"""
    if not isinstance(node, Add | Mul) or not isinstance(node.y, Constant):
        return None
    inner = node.x
    if not isinstance(inner, Add | Mul) or not isinstance(inner.y, Constant):
        return None
    if not (plain(node) and plain(inner) and uses.only(node, inner)):
        return None
    a, b = inner.y.value, node.y.value
    if isinstance(inner, Mul) and isinstance(node, Add):
        return None
    if not compact(a, b):
        return declined(node, "the combined constant would be larger than both")
    with np.errstate(over="ignore"):
        made = a + b if isinstance(node, Add) else a * b
    return merged(node, inner, made, uses) if np.isfinite(made).all() else None


def merged(node: Binary, inner: Binary, made: Array, uses: Uses) -> Node:
    """``made``: the sum or product of both Constants."""
    product = float_constant(made, f"{node.name}:y", uses)
    if isinstance(node, Add):
        return Add(name=node.name, x=inner.x, y=product)
    if isinstance(inner, Mul):
        return Mul(name=node.name, x=inner.x, y=product)
    scaled = Mul(name=uses.fresh(f"{node.name}:scaled"), x=inner.x, y=node.y)
    return Add(name=node.name, x=scaled, y=product)


def compact(a: Array, b: Array) -> bool:
    """Whether combining the two makes no constant larger than they are."""
    return int(np.prod(np.broadcast_shapes(a.shape, b.shape))) <= max(a.size, b.size)
