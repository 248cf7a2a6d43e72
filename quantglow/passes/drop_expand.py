"""Leave repetitions to the operator that reads them."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.shape import Expand
from quantglow.passes.constants import is_float
from quantglow.passes.layout import derived
from quantglow.symbolic.shapes import broadcast_shapes, surely_equal


@rewrite_pass("drop-expand")
def drop_expand(node: Node, uses: Uses) -> Node | None:
    """Binary(x, Expand(y)) -> Binary(x, y) where that repeats y as often; the same of a Constant
    that is equal for all samples of a batch
    """
    match node:
        case Binary(x=x, y=Expand(x=y)):
            shape = broadcast_shapes(x.type.shape, y.type.shape)
            return node.with_operands((x, y)) if surely_equal(shape, node.type.shape) else None
        case Binary(x=x, y=Constant() as c) if repeats_itself(c, x):
            return node.with_operands((x, first_of(c, uses)))
        case Binary(x=Constant() as c, y=y) if repeats_itself(c, y):
            return node.with_operands((first_of(c, uses), y))
    return None


def repeats_itself(c: Constant, other: Node) -> bool:
    """Whether a Constant is the same at all places of axis 0, which the other operand has, too."""
    shape = c.type.shape
    if not is_float(c) or not shape or shape[0] < 2 or len(other.type.shape) != len(shape):
        return False
    return shape[0] == other.type.shape[0] and bool((c.value == c.value[:1]).all())


def first_of(c: Constant, uses: Uses) -> Constant:
    """The Constant at the first place of axis 0."""
    return replace(c, name=uses.fresh(derived(c.name, ":first")), value=c.value[:1].copy())
