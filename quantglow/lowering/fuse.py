"""Fusion of element-wise chains: an Elementwise absorbs its operands of the same kind, so that
values stay in registers."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Elementwise, RowMap
from quantglow.ops.expression import Expr, arg
from quantglow.types import DType

MAX_OPERATIONS = 64
"""Maximum number of operations in a fused expression; larger ones would spill registers."""


@rewrite_pass("fuse-elementwise")
def fuse_elementwise(node: Node, uses: Uses) -> Node | None:
    """Elementwise(f, Elementwise(g, x), …) -> Elementwise(f∘g, x, …) if the inner value has one
    reader; one of them may be a RowMap"""
    if not isinstance(node, Elementwise | RowMap):
        return None
    for index, inner in enumerate(node.args):
        if isinstance(inner, Elementwise | RowMap) and uses.single(inner) and _fits(node, inner):
            return _absorb(node, index, inner)
    return None


def _fits(node: Elementwise | RowMap, inner: Elementwise | RowMap) -> bool:
    """Whether the inner value has the full shape: a broadcast would be computed again and again."""
    if isinstance(inner, RowMap) and not _may_hold_rows(node):
        return False
    if isinstance(node, RowMap) and _has_int64(inner):
        return False
    return (
        (inner.type.dtype in (DType.F32, DType.I32) or _is_saturated(inner.expression))
        and inner.type.shape == node.type.shape
        and node.expression.size() + inner.expression.size() <= MAX_OPERATIONS
        and node.args.count(inner) == 1
    )


def _is_saturated(expression: Expr) -> bool:
    """Whether the integers of an expression fit their type: ``quantized`` has clipped them."""
    match expression:
        case Expr("iadd", (Expr("int", (Expr("fmin", (Expr("fmax"), _)),)), Expr("i"))):
            return True
    return False


def _may_hold_rows(node: Elementwise | RowMap) -> bool:
    """Whether sums of rows may be absorbed: sums of sums of rows would need pass after pass."""
    is_narrow = not _has_int64(node) and node.type.dtype is not DType.BOOL
    return isinstance(node, Elementwise) and is_narrow


def _has_int64(node: Elementwise | RowMap) -> bool:
    """Whether a tensor is int64, which a RowMap may not have."""
    return DType.I64 in (node.type.dtype, *(a.type.dtype for a in node.args))


def _absorb(
    node: Elementwise | RowMap, index: int, inner: Elementwise | RowMap
) -> Elementwise | RowMap:
    kept = [a for i, a in enumerate(node.args) if i != index]
    args = list(dict.fromkeys([*kept, *inner.args]))
    own: list[Expr] = [arg(args.index(a)) if a is not inner else arg(0) for a in node.args]
    own[index] = inner.expression.substitute([arg(args.index(a)) for a in inner.args])
    expression = node.expression.substitute(own)
    kind = RowMap if isinstance(inner, RowMap) else type(node)
    return kind(name=node.name, args=tuple(args), expression=expression, out=node.out)
