"""Operators that move values and compute nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import Drawing, Rejected, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import axis_of, counts_from_end


@draws("Reshape", often=3)
def reshape(d: Drawing) -> object:
    x = d.any()
    sizes, remaining = [], x.size
    for _ in range(d.integer(0, 3)):
        size = d.choose([n for n in range(1, remaining + 1) if remaining % n == 0])
        sizes.append(size)
        remaining //= size
    sizes.insert(d.integer(0, len(sizes)), -1 if d.chance(0.4) else remaining)
    if sizes[0] == (x.shape or (0,))[0] and d.chance(0.3):
        sizes[0] = 0
    return d.node("Reshape", x, shape=sizes)


@draws("Transpose", often=3)
def transpose(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4, 5, 6)
    order = {"perm": [int(a) for a in d.rng.permutation(x.rank)]} if d.chance(0.9) else {}
    return d.node("Transpose", x, **order)


@draws("Flatten", "Squeeze", "Unsqueeze")
def rank_change(d: Drawing) -> object:
    x = d.any()
    if d.chance(0.3):
        return d.node("Flatten", x, axis=d.integer(-x.rank if counts_from_end(d) else 0, x.rank))
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if ones and d.chance(0.5):
        return d.node("Squeeze", x, **({"axes": [d.choose(ones)]} if d.chance(0.8) else {}))
    return d.node(
        "Unsqueeze", x, axes=[d.integer(-x.rank - 1 if counts_from_end(d) else 0, x.rank)]
    )


@draws("Concat", often=3)
def concatenation(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4, 5)
    axis = d.integer(0, x.rank - 1)

    def joins(v: Value) -> bool:
        remaining = v.shape[:axis] + v.shape[axis + 1 :]
        same = v.element == x.element and v.rank == x.rank
        return same and remaining == x.shape[:axis] + x.shape[axis + 1 :]

    parts = [d.pick(joins) for _ in range(d.integer(1, 3))]
    return d.node(
        "Concat", x, *parts, axis=axis - x.rank if counts_from_end(d) and d.chance(0.3) else axis
    )


@draws("Split", often=2)
def split(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axis = axis_of(d, x)
    size = x.shape[axis]
    if size < 2:
        raise Rejected("nothing to split")
    if d.opset >= 18 and d.chance(0.3):
        return d.node("Split", x, outputs=2, axis=axis, num_outputs=2)
    first = d.integer(1, size - 1)
    return d.node("Split", x, outputs=2, axis=axis, split=[first, size - first])


@draws("Slice", often=3)
def slicing(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axes = [int(a) for a in d.rng.permutation(x.rank)[: d.integer(1, min(2, x.rank))]]
    sizes = [x.shape[a] for a in axes]
    starts, ends, steps = zip(*(bounds(d, n) for n in sizes), strict=True)
    inputs = {"steps": steps} if d.opset > 9 else {}
    return d.node("Slice", x, starts=starts, ends=ends, axes=axes, **inputs)


def bounds(d: Drawing, size: int) -> tuple[int, int, int]:
    """Start, end and step of a slice that is not empty."""
    for _ in range(9):
        start, end = d.integer(-size - 1, size + 1), d.integer(-size - 2, size + 2)
        step = d.choose((1, 1, 2, -1, -2)) if d.opset > 9 else 1
        if range(size)[start:end:step]:
            return start, end, step
    raise Rejected("nothing left")


@draws("Pad", often=2)
def padding(d: Drawing) -> object:
    x = d.floats(1, 2, 3, 4)
    modes = ("constant", "edge", "reflect") + (("wrap",) if d.opset >= 19 else ())
    mode = d.choose(modes)
    least = -1 if mode == "constant" and d.chance(0.3) else 0
    most = [2 if mode in ("constant", "edge") else min(2, size - 1) for size in x.shape]
    pads = [d.integer(least, m) for _ in range(2) for m in most]
    if mode == "constant" and d.chance(0.6):
        return d.node("Pad", x, mode=mode, pads=pads, **fill(d))
    return d.node("Pad", x, mode=mode, pads=pads)


def fill(d: Drawing) -> dict[str, Any]:
    return {("constant_value" if d.opset > 10 else "value"): np.float32(d.choose((0.0, -1.5)))}


@draws("CenterCropPad")
def center(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    axes = [int(a) for a in d.rng.permutation(x.rank)[: d.integer(1, x.rank)]]
    return d.node("CenterCropPad", x, shape=[d.integer(1, 9) for _ in axes], axes=axes)


@draws("Tile", "Expand")
def repetition(d: Drawing) -> object:
    x = d.any(1, 2, 3, 4)
    if d.chance(0.5):
        return d.node("Tile", x, repeats=[d.integer(1, 2) for _ in x.shape])
    shape = [d.integer(1, 3) if size == 1 else size for size in x.shape]
    shape = [1 if d.chance(0.2) else size for size in shape]
    return d.node("Expand", x, shape=([d.integer(1, 2)] if d.chance(0.3) else []) + shape)


@draws("ReverseSequence")
def reverse(d: Drawing) -> object:
    x = d.any(2, 3, 4)
    batch_axis = d.integer(0, 1)
    batch, time = x.shape[batch_axis], x.shape[1 - batch_axis]
    lengths = d.constant(d.rng.integers(1, time + 1, batch))
    return d.node("ReverseSequence", x, lengths, batch_axis=batch_axis, time_axis=1 - batch_axis)


@draws("Trilu")
def triangle(d: Drawing) -> object:
    x = d.any(2, 3, 4)
    k = (d.constant(np.int64(d.integer(-2, 2))),) if d.chance(0.5) else ()
    return d.node("Trilu", x, *k, **d.some({"upper": (0, 1)}))
