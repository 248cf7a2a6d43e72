"""Element-wise operators behind moved elements of a layer, moved to where they may fuse with it."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Binary
from quantglow.ops.contraction import Contraction
from quantglow.ops.unary import Unary
from quantglow.passes.constants import scalar_of
from quantglow.passes.layout import behind_moves, derived, moved_alike, per_axis


@rewrite_pass("raise-elements")
def raise_elements(node: Node, uses: Uses) -> Node | None:
    """f(Transpose(Reshape(Conv(x)))) -> Transpose(Reshape(f(Conv(x)))) for an element-wise f

    ``sink_transpose`` does so, too, but not for Transposes to channels-last: these climb, and may
    end below a Reshape of a layer's rows.
    """
    x = only_operand(node)
    if x is None or per_axis(node) or node.type.shape != x.type.shape:
        return None
    producer, moves = behind_moves(x, uses)
    if not moves or not isinstance(producer, Contraction):
        return None
    made = node.with_operands(
        tuple(producer if o is x else as_scalar(o, uses) for o in node.operands)
    )
    return moved_alike(made, moves, uses)


def only_operand(node: Node) -> Node | None:
    """The operand of an element-wise operator whose others are scalar Constants."""
    if isinstance(node, Unary):
        return node.operands[0] if len(node.operands) == 1 else None
    if isinstance(node, Binary):
        others = [operand for operand in node.operands if scalar_of(operand) is None]
        return others[0] if len(others) == 1 else None
    return None


def as_scalar(node: Node, uses: Uses) -> Node:
    """A Constant of one element without axes."""
    assert isinstance(node, Constant)
    name = uses.fresh(derived(node.name, ":scalar"))
    return replace(node, name=name, value=node.value.reshape(())) if node.type.shape else node
