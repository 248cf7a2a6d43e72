"""Operators that read or write at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, INTEGER, Drawing, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import axis_of, scores

REDUCTIONS = ("add", "mul", "max", "min")


@draws("Gather", often=2)
def gathering(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axis = axis_of(d, x)
    size = x.shape[axis]
    if d.chance(0.3):
        best = d.inner("ArgMax", scores(d, 1, 2, 3), axis=-1, keepdims=0)
        bound = d.constant(np.int64(size))
        return d.node("Gather", x, d.inner("Mod", best, bound), axis=axis)
    shape = d.choose(((), (3,), (2, 2)))
    return d.node("Gather", x, d.constant(d.rng.integers(-size, size, shape)), axis=axis)


@draws("GatherElements")
def gather_elements(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axis = axis_of(d, x)
    size = x.shape[axis]
    return d.node("GatherElements", x, d.constant(places(d, x, size)), axis=axis)


def places(d: Drawing, x: Value, size: int) -> Any:
    """An index for each element of a smaller tensor than x."""
    return d.rng.integers(-size, size, [d.integer(1, n) for n in x.shape])


@draws("GatherND")
def gather_nd(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    batch = d.integer(0, min(1, x.rank - 1)) if d.opset >= 12 else 0
    depth = d.integer(1, x.rank - batch)
    lead = [*x.shape[:batch], *(d.integer(1, 3) for _ in range(d.integer(0, 2)))]
    columns = [d.rng.integers(-n, n, lead) for n in x.shape[batch : batch + depth]]
    indices = d.constant(np.stack(columns, axis=-1))
    return d.node("GatherND", x, indices, **({"batch_dims": batch} if batch else {}))


def reduction_of(d: Drawing) -> dict[str, str]:
    """Reduction of values at the same index; without one, no two indices may be equal."""
    known = REDUCTIONS if d.opset >= 18 else REDUCTIONS[:2] if d.opset >= 16 else ()
    return {"reduction": d.choose(known)} if known and d.chance(0.6) else {}


@draws("ScatterElements", "Scatter")
def scatter_elements(d: Drawing) -> object:
    x = d.of((FLOAT, FLOAT, INTEGER), 1, 2, 3, 4)
    axis, reduction = axis_of(d, x), reduction_of(d)
    size = x.shape[axis]
    at = places(d, x, size)
    if not reduction:
        order = np.argsort(d.rng.random([*at.shape]), axis=axis)
        at = np.where(d.chance(0.5), order, order - size)
    op = "ScatterElements" if d.opset > 10 else "Scatter"
    return d.node(op, x, d.constant(at), updates(d, x, at.shape), axis=axis, **reduction)


def updates(d: Drawing, x: Value, shape: tuple[int, ...]) -> Value:
    if x.element == FLOAT:
        return d.normal(*shape)
    return d.constant(d.rng.integers(-5, 6, shape))


@draws("TensorScatter")
def tensor_scatter(d: Drawing) -> object:
    x = d.of((FLOAT, FLOAT, INTEGER), 2, 3, 4)
    axis, mode = d.integer(1, x.rank - 1), d.choose(("linear", "circular"))
    size = x.shape[axis]
    steps = d.integer(1, size)
    last = size - 1 if mode == "circular" else size - steps
    written = updates(d, x, tuple(steps if i == axis else n for i, n in enumerate(x.shape)))
    starts = (d.constant(d.rng.integers(0, last + 1, x.shape[0])),) if d.chance(0.8) else ()
    axis = d.choose((axis, axis - x.rank))
    return d.node("TensorScatter", x, written, *starts, axis=axis, mode=mode)


@draws("ScatterND")
def scatter_nd(d: Drawing) -> object:
    x = d.of((FLOAT, FLOAT, INTEGER), 1, 2, 3, 4)
    depth, reduction = d.integer(1, x.rank), reduction_of(d)
    room = int(np.prod(x.shape[:depth]))
    count = d.integer(1, min(room, 5))
    flat = d.rng.integers(0, room, count) if reduction else d.rng.permutation(room)[:count]
    at = np.stack(np.unravel_index(flat, x.shape[:depth]), axis=-1)
    new = updates(d, x, (count, *x.shape[depth:]))
    return d.node("ScatterND", x, d.constant(at.astype(np.int64)), new, **reduction)


@draws("OneHot")
def one_hot(d: Drawing) -> object:
    x = d.of((INTEGER,), 1, 2, 3)
    depth = d.constant(np.int64(d.integer(1, 5)))
    values = d.constant(np.array([d.integer(-2, 0), d.integer(1, 3)], np.float32))
    return d.node("OneHot", x, depth, values, axis=d.integer(-x.rank - 1, x.rank))


@draws("Compress")
def compress(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axis = axis_of(d, x) if d.chance(0.7) else None
    length = x.size if axis is None else x.shape[axis]
    chosen = d.rng.random(d.integer(1, length)) < 0.6
    shape = list(x.shape) if axis is not None else [0]
    shape[axis or 0] = int(chosen.sum())
    inputs = {} if axis is None else {"axis": axis}
    return d.shaped(shape, "Compress", x, d.constant(chosen), **inputs)
