"""Export of operators that move elements."""

from __future__ import annotations

import numpy as np

from quantglow.frontend.export.writer import (
    Value,
    Writer,
    channels_first,
    export_rule,
    identity,
    moves_only_ones,
    of_rank,
    permuted,
)
from quantglow.graph.node import Constant
from quantglow.ops import AntialiasedResize, Concat, Expand, Pad, Reshape, Resize, Slice
from quantglow.symbolic.shapes import surely_equal
from quantglow.symbolic.size import is_free

IMAGE = channels_first(4)


@export_rule(Reshape)
def reshape(node: Reshape, w: Writer) -> Value:
    """Between the orders of axes in which x is there and ONNX wants images, if memory agrees."""
    before, after = w.order(node.x), identity(node.type.rank)
    if not moves_only_ones(node.x.type.shape, before):
        before = identity(node.x.type.rank)
    if node.type.rank == 4 and moves_only_ones(node.shape, IMAGE):
        after = IMAGE
    shape = permuted(node.shape, after)
    if surely_equal(shape, permuted(node.x.type.shape, before)):
        return Value(w.stored(node.x, before), after)
    return w.rounded(node, w.reshaped(w.real(node.x, before), shape, node.name), after)


@export_rule(Expand)
def expand(node: Expand, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.order(node.x) if node.x.type.rank == rank else identity(rank)
    own = perm if node.x.type.rank == rank else identity(node.x.type.rank)
    shape = w.integers(permuted(of_rank(node.shape, rank), perm), f"{node.name}:shape")
    made = w.emit("Expand", [w.real(node.x, own), shape], f"{node.name}:real")
    return w.rounded(node, made, perm)


@export_rule(Concat)
def concat(node: Concat, w: Writer) -> Value:
    perm = w.common_order(node.parts, node.type.rank)
    parts = [w.real(part, perm) for part in node.parts]
    made = w.emit("Concat", parts, f"{node.name}:real", axis=perm.index(node.axis))
    return w.rounded(node, made, perm)


@export_rule(Slice)
def slice_(node: Slice, w: Writer) -> Value:
    """An end that is reached backwards is counted from behind: -1 would be the last element."""
    if (numbers := counted(node, w)) is not None:
        return Value(numbers, identity(1))
    perm = w.order(node.x)
    rows: list[tuple[int, int, int, int]] = []
    for axis, p in enumerate(perm):
        d, start, size, step = node.x.type.shape[p], node.starts[p], node.sizes[p], node.steps[p]
        end = start + size * step
        if not surely_equal((start, size, step), (0, d, 1)):
            rows.append((start, end if step > 0 else end - d, axis, step))
    if not rows:
        return Value(w.stored(node.x, perm), perm)
    columns = zip(("starts", "ends", "axes", "steps"), zip(*rows, strict=True), strict=True)
    operands = [w.integers(values, f"{node.name}:{label}") for label, values in columns]
    made = w.emit("Slice", [w.real(node.x, perm), *operands], f"{node.name}:real")
    return w.rounded(node, made, perm)


def counted(node: Slice, w: Writer) -> str | None:
    """Range for a free part of the integers from 0, which a graph stores up to some number."""
    if not isinstance(node.x, Constant) or node.type.rank != 1 or not is_free(node.sizes[0]):
        return None
    value = node.x.value
    if node.steps != (1,) or value.dtype != np.int64 or (value != np.arange(len(value))).any():
        return None
    (start,), (size,) = node.starts, node.sizes
    ends = [w.integers([end], f"{node.name}:{end}") for end in (start, start + size)]
    bounds = [w.reshaped(end, (), node.name) for end in ends]
    one = w.constant(np.array(1, np.int64), f"{node.name}:one")
    return w.emit("Range", [*bounds, one], node.name)


@export_rule(Pad)
def pad(node: Pad, w: Writer) -> Value:
    perm = w.order(node.x)
    widths = w.integers(
        (*permuted(node.before, perm), *permuted(node.after, perm)), f"{node.name}:pads"
    )
    kind = np.float32 if node.x.type.quant else node.type.dtype.numpy
    value = w.constant(np.array(node.value, kind), f"{node.name}:value")
    made = w.emit("Pad", [w.real(node.x, perm), widths, value], f"{node.name}:real")
    return w.rounded(node, made, perm)


@export_rule(AntialiasedResize)
def antialiased_resize(node: AntialiasedResize, w: Writer) -> Value:
    w.require(18)
    return resize(node, w, antialias=1, exclude_outside=int(node.excludes_outside))


@export_rule(Resize)
def resize(node: Resize, w: Writer, **attributes: int) -> Value:
    if node.coordinates == "half_pixel_symmetric":
        w.require(19)
    made = w.emit(
        "Resize",
        [w.real(node.x, IMAGE), "", *resize_operands(node, w)],
        f"{node.name}:real",
        mode=node.mode,
        coordinate_transformation_mode=node.coordinates,
        nearest_mode=node.rounding or "round_prefer_floor",
        **attributes,
    )
    return w.rounded(node, made, IMAGE)


def resize_operands(node: Resize, w: Writer) -> list[str]:
    """Sizes where their ratios are the scales, else the scales; of free sizes these where they
    round to the same."""
    before = node.x.type.shape[1:3]
    axes = list(zip(before, node.sizes, node.scales, strict=True))
    if any(map(is_free, (*before, *node.sizes))):
        if all(is_free(d) or int(np.float32(d) * np.float32(s)) == n for d, n, s in axes):
            return [w.constant(np.array([1, 1, *node.scales], np.float32), f"{node.name}:scales")]
        n, h, width, c = node.type.shape
        return ["", w.integers((n, c, h, width), f"{node.name}:sizes")]
    ratios = np.array(node.sizes) / before
    if (ratios.astype(np.float32) == np.array(node.scales, np.float32)).all():
        n, h, width, c = node.type.shape
        return ["", w.integers((n, c, h, width), f"{node.name}:sizes")]
    return [w.constant(np.array([1, 1, *node.scales], np.float32), f"{node.name}:scales")]
