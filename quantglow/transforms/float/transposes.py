"""Transposes: merged, moved up or down to meet their inverses, folded into Gemm.

A Transpose that moves no data becomes a Reshape.  Transposes to channels-first move down
(``sink_transpose``), also below Reshapes that treat the moved axes as blocks: the channel shuffle
(Reshape, Transpose, Reshape in NCHW) becomes the same in NHWC this way.  A Transpose to
channels-last is never moved down; ``hoist_transpose`` moves it up, so that element-wise operators
end in NHWC on whichever side of them the Transpose was.  The NCHW flatten before a classifier
reorders the rows of its weights instead of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops.binary import Binary, PRelu
from quantglow.ir.ops.convolution import Gemm
from quantglow.ir.ops.pooling import Reduce
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.quantization import Table
from quantglow.ir.ops.shape import Concat, Expand, Reshape, Transpose
from quantglow.ir.symbolic.size import decide, fixed
from quantglow.support.arrays import Array
from quantglow.transforms.float.layout import (
    Axes,
    AxisBlock,
    axis_blocks,
    back_to_target,
    consecutive,
    derive,
    inverse,
    is_identity,
    move,
    moves_only_ones,
    per_axis,
    permute,
    ranks,
    spread,
    target_order,
    to_channels_first,
    to_channels_last,
    transpose,
)
from quantglow.transforms.rewrite import Uses, rewrite_pass

Moved = tuple[Node, Axes]
"""The op on untransposed operands, and the permutation its result still needs."""


@rewrite_pass("merge-transposes")
def merge_transposes(node: Node, uses: Uses) -> Node | None:
    """Transpose(Transpose(x, p), q) -> Transpose(x, p[q]), or x if nothing moves"""
    match node:
        case Transpose(x=Transpose(x=x, perm=first), perm=second) if not per_axis(x):
            perm = permute(first, second)
            return x if is_identity(perm) else replace(node, x=x, perm=perm)
    return None


@rewrite_pass("transpose-to-reshape")
def transpose_to_reshape(node: Node, uses: Uses) -> Node | None:
    """Transpose(x, p) -> Reshape(x) where p moves only axes of size 1"""
    match node:
        case Transpose(x=x, perm=perm) if not per_axis(x) and moves_only_ones(x.type.shape, perm):
            return Reshape(name=node.name, x=x, shape=node.type.shape)
    return None


@rewrite_pass("sink-transpose")
def sink_transpose(node: Node, uses: Uses) -> Node | None:
    """f(Transpose(x)) -> Transpose(f'(x)) for element-wise f, Concat, Slice, Pad, reductions, …"""
    move = _move_up(node, uses)
    if move is None:
        return None
    inner, perm = move
    if is_identity(perm):
        return inner
    return Transpose(name=uses.fresh(derive(node.name, ":nchw")), x=inner, perm=perm)


def _move_up(node: Node, uses: Uses) -> Moved | None:
    """The node moved above the Transpose that feeds it."""
    if isinstance(node, Binary | Elementwise):
        return _move_elements(node, uses)
    if isinstance(node, Concat):
        return _move_concat(node, uses)
    t = node.operands[0] if node.operands else node
    if not _sinks(t) or per_axis(node):
        return None
    match node:
        case PRelu(slope=Constant() as slope):
            beside_x = transpose(slope, inverse(t.perm), uses)
            return None if beside_x is None else (node.with_operands((t.x, beside_x)), t.perm)
        case PRelu():
            return None
        case Reduce():
            return _move_reduce(node, t)
    changes = node.permute(inverse(t.perm))
    if changes is None:
        return None
    # Operands behind x are parameters of elements or channels, which do not move.
    return node.with_operands((t.x, *node.operands[1:]), **changes), t.perm


def _sinks(node: Node) -> TypeGuard[Transpose]:
    """Whether the node is a Transpose that moves down."""
    return isinstance(node, Transpose) and not to_channels_last(node.perm) and not per_axis(node)


def _move_reduce(node: Reduce, t: Transpose) -> Moved:
    """The reduction before the Transpose: its axes are renamed, the result permuted."""
    axes = tuple(sorted(t.perm[axis] for axis in node.axes))
    reduction: Node = replace(node, x=t.x, axes=axes)  # type: ignore[call-arg]
    if node.keepdims:
        return reduction, t.perm
    remaining = [axis for i, axis in enumerate(t.perm) if i not in node.axes]
    return reduction, tuple(sorted(remaining).index(axis) for axis in remaining)


def _move_elements(node: Binary | Elementwise, uses: Uses) -> Moved | None:
    """The node on operands before the Transpose that one of them is."""
    alignment = _align(node.operands, node.type.rank, uses)
    if alignment is None:
        return None
    operands, perm = alignment
    return node.with_operands(operands), perm


def _move_concat(node: Concat, uses: Uses) -> Moved | None:
    alignment = _align(node.parts, node.type.rank, uses)
    if alignment is None:
        return None
    parts, perm = alignment
    return replace(node, parts=parts, **node.permute(inverse(perm))), perm


def _align(operands: Sequence[Node], rank: int, uses: Uses) -> tuple[tuple[Node, ...], Axes] | None:
    """The operands before a Transpose that one of them is.

    A Transpose back from channels-first is worth a Transpose of the other operands: it brings
    them into the layout of the convolutions.
    """
    candidates: list[Transpose] = [o for o in operands if _sinks(o) and len(o.perm) == rank]
    if not candidates:
        return None
    perm = next((c.perm for c in candidates if to_channels_first(c.perm)), candidates[0].perm)
    sources = [_beside(o, perm, uses) for o in operands]
    if any(f is None for f in sources):
        return None
    return tuple(f for f in sources if f is not None), perm


def _beside(operand: Node, perm: Axes, uses: Uses) -> Node | None:
    """An operand as it stands beside ``x`` of ``Transpose(x, perm)``.

    An operand that is another Transpose stays, else the two could trade places for ever.
    """
    if isinstance(operand, Transpose | Constant) or per_axis(operand):
        return transpose(operand, inverse(perm), uses)
    return move(operand, inverse(perm), uses) if to_channels_first(perm) else None


@rewrite_pass("sink-transpose-below-reshape")
def sink_transpose_below_reshape(node: Node, uses: Uses) -> Node | None:
    """Reshape(Transpose(x)) -> Transpose(Reshape(x)) where blocks of axes move as a whole."""
    if not isinstance(node, Reshape) or not _sinks(node.x) or node.type.is_empty:
        return None
    t = node.x
    place = ranks(t.x.type.shape, t.perm)
    blocks = axis_blocks(t.type.shape, node.shape)
    if not all(consecutive(tuple(sorted(place[a] for a in b.source))) for b in blocks):
        return None
    ordered = tuple(sorted(blocks, key=lambda b: min(place[a] for a in b.source)))
    order = _best_order(ordered, len(node.shape))
    perm = back_to_target(order)
    # Rising: the axes of each block keep their order in x, so no element moves inside of a block.
    rising = all(consecutive(tuple(place[a] for a in b.source)) for b in blocks)
    if to_channels_last(perm) or not (rising or to_channels_first(perm)):
        return None
    if rising and is_identity(perm):
        return replace(node, x=t.x)
    x = t.x if rising else shuffle(node, t, ordered, uses)
    reshape = replace(node, x=x, shape=permute(node.shape, order))
    return Transpose(name=uses.fresh(derive(node.name, ":nchw")), x=reshape, perm=perm)


def _best_order(ordered: tuple[AxisBlock, ...], rank: int) -> Axes:
    """Target axes in the order of x; axes of size 1 go where channels come out last, if they can,
    and never where the Transpose left over would climb again."""
    choices = [target_order(ordered, rank, follow) for follow in (True, False)]
    choices.sort(key=lambda order: to_channels_last(back_to_target(order)))
    return next((c for c in choices if to_channels_first(back_to_target(c))), choices[0])


def shuffle(node: Node, t: Transpose, ordered: tuple[AxisBlock, ...], uses: Uses) -> Node:
    """The axes within each block put in the order that ``t`` gave them, blocks left in place."""
    real = tuple(t.perm[axis] for block in ordered for axis in block.source)
    perm = spread(real, t.x.type.shape)
    return Transpose(name=uses.fresh(derive(node.name, ":shuffle")), x=t.x, perm=perm)


@dataclass(frozen=True)
class HoistTranspose:
    """f(x) -> Transpose(f'(Transpose(x))) where a reader of f(x) wants it channels-last.

    The outer Transpose cancels against that reader's; for other readers it sinks.  The inner ones
    climb to the producers, in the end to the inputs of the graph.
    """

    name: str = "hoist-transpose"

    def __call__(self, graph: Graph) -> Graph:
        uses = Uses(names=Names.of(graph))
        perms = {
            node.x: node.perm
            for node in graph.nodes
            if isinstance(node, Transpose) and to_channels_last(node.perm)
        }
        return graph.rebuild(_in_step(graph, lambda node, new: _hoist(new, perms.get(node), uses)))


def _in_step(graph: Graph, rule: Callable[[Node, Node], Node]) -> Callable[[Node], Node]:
    """A rule for ``rebuild`` that is also given the node of the graph as it was."""
    originals = iter(graph.nodes)
    return lambda new: rule(next(originals), new)


def _hoist(f: Node, perm: Axes | None, uses: Uses) -> Node:
    """The node in channels-last and transposed back; the node itself where that gains nothing."""
    if isinstance(f, Transpose) and perm is None:
        return _cancel(f)
    if perm is None or per_axis(f) or any(per_axis(operand) for operand in f.operands):
        return f
    inner = _above(f, perm, uses)
    if inner is None:
        return f
    return Transpose(name=uses.fresh(derive(f.name, ":nchw")), x=inner, perm=inverse(perm))


def _cancel(node: Transpose) -> Node:
    """Transpose(Transpose(x)) that moves nothing is x."""
    inner = node.x
    cancels = isinstance(inner, Transpose) and is_identity(permute(inner.perm, node.perm))
    return inner.x if cancels and isinstance(inner, Transpose) else node


def _above(f: Node, perm: Axes, uses: Uses) -> Node | None:
    """``Transpose(f, perm)`` with the Transpose moved to the operands of f."""
    match f:
        case Reshape():
            return _above_reshape(f, perm, uses)
        case Expand():
            return None  # Its operand is smaller than its result.
        case Table(x=x, table=table):
            return f.with_operands((move(x, perm, uses), table))
    changes = f.permute(perm)
    if changes is None:
        return None
    operands = tuple(move(x, perm, uses) for x in f.operands)
    return f.with_operands(operands, **changes)


def _above_reshape(f: Reshape, perm: Axes, uses: Uses) -> Node | None:
    """The Reshape on an operand whose blocks of axes are moved already."""
    if f.type.is_empty:
        return None
    position = {axis: i for i, axis in enumerate(a for a in perm if decide(f.shape[a] != 1))}
    blocks = axis_blocks(f.x.type.shape, f.shape)
    if not all(consecutive(tuple(position[a] for a in b.target)) for b in blocks):
        return None
    ordered = sorted(blocks, key=lambda b: position[b.target[0]])
    order = spread(tuple(axis for b in ordered for axis in b.source), f.x.type.shape)
    x = f.x
    if not is_identity(order):
        x = Transpose(name=uses.fresh(derive(f.name, ":nhwc")), x=x, perm=order)
    return replace(f, x=x, shape=permute(f.shape, perm))


hoist_transpose = HoistTranspose()


@rewrite_pass("fold-transpose-into-gemm")
def fold_transpose_into_gemm(node: Node, uses: Uses) -> Node | None:
    """Gemm(Reshape(Transpose(x)), w) -> Gemm(Reshape(x), w with its rows permuted)"""
    match node:
        case Gemm(x=Reshape(x=Transpose(perm=perm) as t, shape=shape) as flat, w=Constant() as w):
            if perm[0] != 0 or decide(t.type.shape[0] != shape[0]):
                return None
            value = _permute_rows(w.value, fixed(t.type.shape[1:]), perm)
            rows = Constant(
                name=uses.fresh(derive(w.name, ":rows")), value=value, element=w.element
            )
            x = Reshape(name=uses.fresh(derive(flat.name, ":nhwc")), x=t.x, shape=shape)
            return replace(node, x=x, w=rows)
    return None


def _permute_rows(w: Array, sizes: Axes, perm: Axes) -> Array:
    """Rows indexed by transposed axes, re-indexed by the axes before the transpose."""
    columns = w.shape[1]
    back = tuple(axis - 1 for axis in inverse(perm)[1:])
    cube = w.reshape(*sizes, columns).transpose(*back, len(sizes))
    return np.ascontiguousarray(cube).reshape(-1, columns)
