"""Fusion of element-wise chains: a Map absorbs the Maps it reads, so that values stay in
registers."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Map
from quantglow.ops.expression import Expr, arg
from quantglow.types import DType

MAX_OPERATIONS = 64
"""Larger expressions would spill registers."""


@rewrite_pass("fuse-maps")
def fuse_maps(node: Node, uses: Uses) -> Node | None:
    """Map(f, Map(g, x), …) -> Map(f∘g, x, …) where the inner value has one reader"""
    if not isinstance(node, Map):
        return None
    for index, inner in enumerate(node.args):
        if isinstance(inner, Map) and uses.single(inner) and _fits(node, inner):
            return _absorb(node, index, inner)
    return None


def _fits(node: Map, inner: Map) -> bool:
    """Values of full shape only, or a broadcast would be computed again and again."""
    return (
        (inner.type.dtype in (DType.F32, DType.I32) or _is_saturated(inner.expression))
        and inner.type.shape == node.type.shape
        and node.expression.size() + inner.expression.size() <= MAX_OPERATIONS
        and node.args.count(inner) == 1
    )


def _is_saturated(expression: Expr) -> bool:
    """Whether the integers of an expression are what is stored: ``quantized`` has clipped them."""
    match expression:
        case Expr("iadd", (Expr("int", (Expr("fmin", (Expr("fmax"), _)),)), Expr("i"))):
            return True
    return False


def _absorb(node: Map, index: int, inner: Map) -> Map:
    kept = [a for i, a in enumerate(node.args) if i != index]
    args = list(dict.fromkeys([*kept, *inner.args]))
    own: list[Expr] = [arg(args.index(a)) if a is not inner else arg(0) for a in node.args]
    own[index] = inner.expression.substitute([arg(args.index(a)) for a in inner.args])
    return replace(node, args=tuple(args), expression=node.expression.substitute(own))
