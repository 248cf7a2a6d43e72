"""Strides of views: the distance of neighbors along each axis, in elements."""

from __future__ import annotations

import math
from itertools import pairwise


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reshaped_strides(
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
    found: list[int] = []
    while axes and len(found) < len(new):
        run, count = [axes.pop(0)], 1
        while (have := math.prod(s for s, _ in run)) != (
            wanted := math.prod(new[len(found) : len(found) + count])
        ):
            if wanted < have:
                count += 1
            else:
                run.append(axes.pop(0))
        if any(outer != size * inner for (_, outer), (size, inner) in pairwise(run)):
            return None
        part = dense_strides(new[len(found) : len(found) + count])
        found += [run[-1][1] * stride for stride in part]
    last = found[-1] if found else 1
    return (*found, *[last] * (len(new) - len(found)))
