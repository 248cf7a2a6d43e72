"""Second operands that fit a first one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from tests.generators.onnx_models.drawing import CONDITION, FLOAT, Drawing, Value


def tail(d: Drawing, x: Value) -> tuple[int, ...]:
    """A shape that broadcasts to that of x: some leading dimensions dropped, some others 1."""
    kept = x.shape[d.integer(0, x.rank) :]
    return tuple(1 if d.chance(0.4) else size for size in kept)


def fits(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes broadcast."""
    return all(1 in (m, n) or m == n for m, n in zip(a[::-1], b[::-1], strict=False))


def broadcastable(d: Drawing, x: Value) -> Value:
    """Another value, or a constant, to combine with x."""
    others = [v for v in d.values if v.element == x.element and fits(v.shape, x.shape)]
    if others and d.chance(0.6):
        return d.choose(others)
    shape = tail(d, x)
    if x.element == FLOAT:
        return d.normal(*shape)
    if x.element == CONDITION:
        return d.constant(d.rng.random(shape) < 0.5)
    return numbers(d, x.element, shape)


def numbers(d: Drawing, element: int, shape: Sequence[int], low: int = -5, high: int = 5) -> Value:
    """A constant of integers, both bounds included."""
    dtype = helper.tensor_dtype_to_np_dtype(element)
    low = max(low, 0) if dtype.kind == "u" else low
    return d.constant(d.rng.integers(low, high + 1, shape).astype(dtype))


def bounded(d: Drawing, x: Value, low: float, high: float) -> Value:
    """x clipped to bounds, for functions that are only defined there."""
    return d.inner("Clip", x, min=np.float32(low), max=np.float32(high))


def positive(d: Drawing, x: Value, least: float = 0.25) -> Value:
    """The sum |x| + least."""
    return d.inner("Add", d.inner("Abs", x), d.constant(np.float32(least)))


def scores(d: Drawing, *ranks: int) -> Value:
    """Values without ties, or with exact ones, so that rounding of sums does not choose a
    winner.
    """
    fed = [v for v in d.inputs if v.element == FLOAT and v.rank in ranks]
    if fed and d.chance(0.4):
        x = d.choose(fed)
        return d.inner("Round", x) if d.chance(0.5) else x
    x = d.floats(*ranks)
    return d.inner("Add", bounded(d, x, -3, 3), d.normal(*x.shape))


def axes_of(d: Drawing, x: Value, least: int = 0) -> list[int]:
    """Some axes of x in any order, some counted from the end."""
    count = d.integer(min(least, x.rank), x.rank)
    chosen = [int(a) for a in d.rng.permutation(x.rank)[:count]]
    return [a - x.rank if counts_from_end(d) and d.chance(0.3) else a for a in chosen]


def axis_of(d: Drawing, x: Value) -> int:
    return d.integer(-x.rank if counts_from_end(d) else 0, x.rank - 1)


def counts_from_end(d: Drawing) -> bool:
    """Whether axes may be negative in this opset."""
    return d.opset >= 11
