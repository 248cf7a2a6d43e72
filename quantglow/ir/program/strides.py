"""Strides of views: the distance of neighbors along each axis, in elements."""

from __future__ import annotations

from itertools import pairwise

from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal, decide_in, prod


def dense_strides(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def reshape_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of the same elements under the shape ``new``, or None where there are none.

    As NumPy's reshape without a copy: both shapes are cut into the shortest runs of axes with
    equally many elements, and axes that stay together must lie densely in one another.
    """
    if decide_equal(shape, new):
        return strides
    if decide_in(0, shape):
        return dense_strides(new)
    axes = [axis for axis in zip(shape, strides, strict=True) if decide(axis[0] != 1)]
    result: list[Dim] = []
    while axes and len(result) < len(new):
        run, count = [axes.pop(0)], 1
        while decide(
            (old_size := prod(s for s, _ in run))
            != (new_size := prod(new[len(result) : len(result) + count]))
        ):
            if decide(new_size < old_size):
                count += 1
            else:
                run.append(axes.pop(0))
        if any(decide(outer != size * inner) for (_, outer), (size, inner) in pairwise(run)):
            return None
        part = dense_strides(new[len(result) : len(result) + count])
        result += [run[-1][1] * stride for stride in part]
    last = result[-1] if result else 1
    return (*result, *[last] * (len(new) - len(result)))
