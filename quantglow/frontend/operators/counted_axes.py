"""Indices that count along an axis, as the grids by which exporters read masks.

``x[i, j]`` for all i and j is x itself, with axes between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.ops import Concat, Expand, Reshape, Slice
from quantglow.symbolic.shapes import surely_equal
from quantglow.symbolic.size import likely

Shape = tuple[int, ...]


def counted_axes(indices: Node, sizes: Shape) -> list[int] | None:
    """For each coordinate in the last axis of ``indices`` the axis along which it counts all of an
    axis of these sizes, in ascending order; None for other indices.

    Free sizes that are equal at the shape at hand, as a mask's and that of keys with a cache, are
    equal by a guard.
    """
    outer = indices.type.shape[:-1]
    found: list[int] = []
    for number, size in enumerate(sizes):
        after = found[-1] if found else -1
        axes = (axis for axis in coordinate_axes(indices, number) if axis > after)
        fitting = next((axis for axis in axes if likely(outer[axis]) == likely(size)), None)
        if fitting is None:
            return None
        found.append(fitting)
    return found if all(outer[a] == size for a, size in zip(found, sizes, strict=True)) else None


def coordinate_axes(indices: Node, number: int) -> list[int]:
    """The axes along which a coordinate counts from 0; of size 1, any does."""
    if isinstance(indices, Constant):  # its last axis is taken away, that of a Concat is not
        return axes_of_array(indices.value[..., number])
    last = indices.type.rank - 1
    if not isinstance(indices, Concat) or indices.axis != last:
        return []
    if any(part.type.shape[last] != 1 for part in indices.parts):
        return []
    return [axis for axis in axes_of(indices.parts[number]) if axis != last]


def axes_of(node: Node) -> list[int]:
    """The axes along which a tensor counts from 0, equal along all others."""
    shape = node.type.shape
    match node:
        case Constant():
            return axes_of_array(node.value)
        case Slice(x=x, starts=starts, steps=steps):
            rank = len(shape)
            is_begin = surely_equal(starts, (0,) * rank) and surely_equal(steps, (1,) * rank)
            return axes_of(x) if is_begin else []
        case Expand(x=x):
            added = len(shape) - x.type.rank
            axes = [(axis, axis + added) for axis in axes_of(x)]
            sizes = x.type.shape
            return [new for old, new in axes if surely_equal((sizes[old],), (shape[new],))]
        case Reshape(x=x):
            before, after = longer_axes(x.type.shape), longer_axes(shape)
            if not surely_equal(sizes_at(x.type.shape, before), sizes_at(shape, after)):
                return []
            return [after[before.index(axis)] for axis in axes_of(x) if axis in before]
    return []


def axes_of_array(array: Array) -> list[int]:
    """``axes_of`` of known integers."""
    if array.dtype.kind not in "iu" or not array.size:
        return []
    numbers = (np.arange(size) for size in array.shape)
    places = (
        n.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        for axis, n in enumerate(numbers)
    )
    return [axis for axis, wanted in enumerate(places) if (array == wanted).all()]


def longer_axes(shape: Shape) -> list[int]:
    """The axes that are not 1."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def sizes_at(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(shape[axis] for axis in axes)
