"""How a Reshape groups axes: the smallest runs of source and target axes of equal size.

``[N, C, H, W] -> [N, g, c, H*W]`` groups N|N, C|g c, H W|H*W.  A Transpose that moves groups as a
whole commutes with the Reshape.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.passes.layout import Axes, inverse


@dataclass(frozen=True)
class Block:
    """Axes of the source that become axes of the target, without those of size 1."""

    source: Axes
    target: Axes


def blocks_of(source: Axes, target: Axes) -> tuple[Block, ...]:
    """The blocks of a Reshape between two shapes without zeros, in order."""
    left = [axis for axis, size in enumerate(source) if size != 1]
    right = [axis for axis, size in enumerate(target) if size != 1]
    blocks = []
    while left:
        taken, given = [left.pop(0)], [right.pop(0)]
        before, after = source[taken[0]], target[given[0]]
        while before != after:
            if before < after:
                taken.append(left.pop(0))
                before *= source[taken[-1]]
            else:
                given.append(right.pop(0))
                after *= target[given[-1]]
        blocks.append(Block(tuple(taken), tuple(given)))
    return tuple(blocks)


def consecutive(axes: Axes) -> bool:
    """Whether the axes are neighbours in rising order."""
    return axes == tuple(range(axes[0], axes[0] + len(axes)))


def ranks(shape: Axes, perm: Axes) -> dict[int, int]:
    """For each axis of the permuted tensor whose size is not 1, its place among those of x."""
    real = [axis for axis, size in enumerate(shape) if size != 1]
    place = {axis: i for i, axis in enumerate(real)}
    return {i: place[axis] for i, axis in enumerate(perm) if axis in place}


def spread(real: Axes, shape: Axes) -> Axes:
    """A permutation of the axes of ``shape`` that orders those not of size 1 as ``real``."""
    supply = iter(real)
    return tuple(axis if size == 1 else next(supply) for axis, size in enumerate(shape))


def target_order(blocks: tuple[Block, ...], rank: int, ones_follow: bool) -> Axes:
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
