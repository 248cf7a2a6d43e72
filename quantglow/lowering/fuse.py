"""Fusion of element-wise chains: a Map absorbs the Maps it reads, so that values stay in
registers."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Map, Rows
from quantglow.ops.expression import Expr, arg
from quantglow.types import DType

MAX_OPERATIONS = 64
"""Larger expressions would spill registers."""


@rewrite_pass("fuse-maps")
def fuse_maps(node: Node, uses: Uses) -> Node | None:
    """Map(f, Map(g, x), …) -> Map(f∘g, x, …) where the inner value has one reader; the same for
    Rows, one of them"""
    if not isinstance(node, Map | Rows):
        return None
    for index, inner in enumerate(node.args):
        if isinstance(inner, Map | Rows) and uses.single(inner) and _fits(node, inner):
            return _absorb(node, index, inner)
    return None


def _fits(node: Map | Rows, inner: Map | Rows) -> bool:
    """Values of full shape only, or a broadcast would be computed again and again."""
    if isinstance(inner, Rows) and not _may_hold_rows(node):
        return False
    if isinstance(node, Rows) and _has_int64(inner):
        return False
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


def _may_hold_rows(node: Map | Rows) -> bool:
    """Sums of rows of what is itself made of sums of rows would need pass after pass."""
    is_narrow = not _has_int64(node) and node.type.dtype is not DType.BOOL
    return isinstance(node, Map) and is_narrow


def _has_int64(node: Map | Rows) -> bool:
    """What Rows may not have."""
    return DType.I64 in (node.type.dtype, *(a.type.dtype for a in node.args))


def _absorb(node: Map | Rows, index: int, inner: Map | Rows) -> Map | Rows:
    kept = [a for i, a in enumerate(node.args) if i != index]
    args = list(dict.fromkeys([*kept, *inner.args]))
    own: list[Expr] = [arg(args.index(a)) if a is not inner else arg(0) for a in node.args]
    own[index] = inner.expression.substitute([arg(args.index(a)) for a in inner.args])
    expression = node.expression.substitute(own)
    kind = Rows if isinstance(inner, Rows) else type(node)
    return kind(name=node.name, args=tuple(args), expression=expression, out=node.out)
