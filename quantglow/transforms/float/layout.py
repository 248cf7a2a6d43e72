"""Helpers for permutations: operands moved along, and how a Reshape groups axes.

``[N, C, H, W] -> [N, g, c, H*W]`` groups N|N, C|g c, H W|H*W.  A Transpose that moves groups as a
whole commutes with the Reshape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.shape import Reshape, Transpose
from quantglow.ir.symbolic.size import Shape, decide, decide_equal, fixed
from quantglow.transforms.rewrite import Uses

Axes = tuple[int, ...]

Value = TypeVar("Value")


def inverse(perm: Axes) -> Axes:
    """``inverse(p)[p[i]] == i``"""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def is_identity(perm: Axes) -> bool:
    return perm == tuple(range(len(perm)))


def to_channels_first(perm: Axes) -> bool:
    """``(0, r-1, 1, …, r-2)`` for r >= 4: NHWC to NCHW."""
    rank = len(perm)
    return rank >= 4 and perm == (0, rank - 1, *range(1, rank - 1))


def to_channels_last(perm: Axes) -> bool:
    """``(0, 2, …, r-1, 1)`` for r >= 4: NCHW to NHWC."""
    return len(perm) >= 4 and perm == (0, *range(2, len(perm)), 1)


def moves_only_ones(shape: Shape, perm: Axes) -> bool:
    """Whether transposing keeps the row-major order of the elements."""
    real = [axis for axis in perm if decide(shape[axis] != 1)]
    return real == sorted(real)


def permute(values: tuple[Value, ...], perm: Axes) -> tuple[Value, ...]:
    return tuple(values[axis] for axis in perm)


def derive(name: str, suffix: str) -> str:
    """``name`` with ``suffix`` once."""
    return name.removesuffix(suffix) + suffix


def transpose(node: Node, perm: Axes, uses: Uses) -> Node | None:
    """``Transpose(node, perm)`` where that moves no data at run time, else None.

    The node may lack leading axes of size 1.
    """
    if isinstance(node, Transpose):
        return node.x if node.perm == inverse(perm) else None
    if isinstance(node, Constant) and node.type.size == 1:
        return node
    if node.type.rank > len(perm) or per_axis(node):
        return None
    shape = (*(1,) * (len(perm) - node.type.rank), *node.type.shape)
    if isinstance(node, Constant):
        value = np.array(node.value.reshape(fixed(shape)).transpose(perm), order="C")
        return Constant(name=uses.fresh(derive(node.name, ":t")), value=value, element=node.element)
    if moves_only_ones(shape, perm):
        return reshape(node, permute(shape, perm), uses)
    return None


def move(node: Node, perm: Axes, uses: Uses) -> Node:
    """``Transpose(node, perm)`` in the cheapest form; the node may lack leading axes of size 1."""
    cheap = transpose(node, perm, uses)
    if cheap is not None:
        return cheap
    whole = reshape(node, (*(1,) * (len(perm) - node.type.rank), *node.type.shape), uses)
    return Transpose(name=uses.fresh(derive(node.name, ":t")), x=whole, perm=perm)


def reshape(node: Node, shape: Shape, uses: Uses) -> Node:
    """``Reshape(node, shape)``, or the node itself where it has that shape."""
    if decide_equal(node.type.shape, shape):
        return node
    return Reshape(name=uses.fresh(derive(node.name, ":r")), x=node, shape=shape)


def per_axis(node: Node) -> bool:
    """Whether the node is quantized along an axis, which moving elements would displace."""
    return node.type.quant is not None and node.type.quant.axis is not None


def behind_moves(node: Node, uses: Uses) -> tuple[Node, list[Reshape | Transpose]]:
    """The node whose elements a value has in another order, and the nodes that move them, the last
    first; all of them have one reader.
    """
    moves: list[Reshape | Transpose] = []
    while isinstance(node, Transpose | Reshape) and uses.single(node):
        moves.append(node)
        node = node.x
    return node, moves


def move_alike(node: Node, moves: list[Reshape | Transpose], uses: Uses) -> Node:
    """``moves``, the last first, applied to another node, under new names: the values differ."""
    moved = node
    for move in reversed(moves):
        name = uses.fresh(derive(node.name, ":r" if isinstance(move, Reshape) else ":t"))
        moved = replace(move, name=name, x=moved)
    return moved


@dataclass(frozen=True)
class AxisBlock:
    """Axes of the source that become axes of the target, without those of size 1."""

    source: Axes
    target: Axes


def axis_blocks(source: Shape, target: Shape) -> tuple[AxisBlock, ...]:
    """The blocks of a Reshape between two shapes without zeros, in order."""
    left = [axis for axis, size in enumerate(source) if decide(size != 1)]
    right = [axis for axis, size in enumerate(target) if decide(size != 1)]
    blocks = []
    while left:
        sources, targets = [left.pop(0)], [right.pop(0)]
        before, after = source[sources[0]], target[targets[0]]
        while decide(before != after):
            if decide(before < after):
                sources.append(left.pop(0))
                before *= source[sources[-1]]
            else:
                targets.append(right.pop(0))
                after *= target[targets[-1]]
        blocks.append(AxisBlock(tuple(sources), tuple(targets)))
    return tuple(blocks)


def consecutive(axes: Axes) -> bool:
    """Whether the axes are neighbors in rising order."""
    return axes == tuple(range(axes[0], axes[0] + len(axes)))


def ranks(shape: Shape, perm: Axes) -> dict[int, int]:
    """For each axis of the permuted tensor whose size is not 1, its place among those of x."""
    real = [axis for axis, size in enumerate(shape) if decide(size != 1)]
    place = {axis: i for i, axis in enumerate(real)}
    return {i: place[axis] for i, axis in enumerate(perm) if axis in place}


def spread(real: Axes, shape: Shape) -> Axes:
    """A permutation of the axes of ``shape`` that orders those not of size 1 as ``real``."""
    supply = iter(real)
    return tuple(axis if decide(size == 1) else next(supply) for axis, size in enumerate(shape))


def target_order(blocks: tuple[AxisBlock, ...], rank: int, ones_follow: bool) -> Axes:
    """Target axes block after block.

    An axis of size 1 goes with the axis before it (or after it); leading ones stay in front.
    """
    owner = {axis: i for i, block in enumerate(blocks) for axis in block.target}
    members: list[list[int]] = [[] for _ in blocks]
    leading: list[int] = []
    for axis in range(rank):
        before = max((a for a in owner if a <= axis), default=None)
        after = min((a for a in owner if a >= axis), default=before)
        if before is None or after is None:
            leading.append(axis)
        else:
            members[owner[before if ones_follow else after]].append(axis)
    return (*leading, *(axis for group in members for axis in group))


def back_to_target(order: Axes) -> Axes:
    """The permutation that puts target axes laid out as ``order`` in their places."""
    return inverse(order)
