"""Strides of views: the distance of neighbors along each axis, in elements."""

from __future__ import annotations

import math
from itertools import pairwise


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of the same elements under the shape ``new``, or None where there are none.

    As NumPy's reshape without a copy: both shapes are cut into the shortest runs of axes with
    equally many elements, and axes that stay together must lie densely in one another.
    """
    if shape == new:
        return strides
    if 0 in shape:
        return dense_strides(new)
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    while axes and len(result) < len(new):
        run, count = [axes.pop(0)], 1
        while (old_size := math.prod(s for s, _ in run)) != (
            new_size := math.prod(new[len(result) : len(result) + count])
        ):
            if new_size < old_size:
                count += 1
            else:
                run.append(axes.pop(0))
        if any(outer != size * inner for (_, outer), (size, inner) in pairwise(run)):
            return None
        part = dense_strides(new[len(result) : len(result) + count])
        result += [run[-1][1] * stride for stride in part]
    last = result[-1] if result else 1
    return (*result, *[last] * (len(new) - len(result)))
