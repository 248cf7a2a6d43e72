"""Constant scales and shifts behind a contraction, into its weights and bias."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.ops.contraction import Contraction
from quantglow.ops.shape import Reshape, Transpose
from quantglow.passes.constants import absorbs, channel_values, scalar_of
from quantglow.passes.layout import derived
from quantglow.passes.scaled import with_affine_result
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("fold-arithmetic")
def fold_arithmetic(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w, b) * c -> Conv(x, w*c, b*c); Conv(x, w, b) + c -> Conv(x, w, b + c), for a scalar
    c also through Transposes and Reshapes
    """
    if not isinstance(node, Add | Mul) or not plain(node):
        return None
    return folded(node, uses)


def folded(node: Binary, uses: Uses) -> Node | None:
    producer, moves = behind_moves(node.x, uses)
    if moves and (scalar_of(node.y) is None or node.type.shape != node.x.type.shape):
        return None
    if not isinstance(producer, Contraction) or not absorbs(producer, node, uses):
        return None
    c = channel_values(node.y, producer.type.shape[-1], node.x.type.rank)
    if c is None:
        return None
    scale, shift = (c, None) if isinstance(node, Mul) else (None, c)
    made: Node = with_affine_result(producer, node.name, scale, shift, uses)
    for move in reversed(moves):  # Their names are those of other values now.
        name = uses.fresh(derived(node.name, ":r" if isinstance(move, Reshape) else ":nchw"))
        made = replace(move, name=name, x=made)
    return made


def behind_moves(node: Node, uses: Uses) -> tuple[Node, list[Reshape | Transpose]]:
    """The node whose elements a value has in another order, and the nodes that move them, the last
    first; all of them have one reader.
    """
    moves: list[Reshape | Transpose] = []
    while isinstance(node, Transpose | Reshape) and uses.single(node):
        moves.append(node)
        node = node.x
    return node, moves
