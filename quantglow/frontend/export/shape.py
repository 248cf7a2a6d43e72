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
from quantglow.ops import AntialiasedResize, Concat, Expand, Pad, Reshape, Resize, Slice

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
    if shape == permuted(node.x.type.shape, before):
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
    """An end before the first element is written ``-(d + 1)``: -1 would be the last."""
    perm = w.order(node.x)
    rows: list[tuple[int, int, int, int]] = []
    for axis, p in enumerate(perm):
        d, start, size, step = node.x.type.shape[p], node.starts[p], node.sizes[p], node.steps[p]
        end = start + size * step
        if (start, size, step) != (0, d, 1):
            rows.append((start, end if end >= 0 else -(d + 1), axis, step))
    if not rows:
        return Value(w.stored(node.x, perm), perm)
    columns = zip(("starts", "ends", "axes", "steps"), zip(*rows, strict=True), strict=True)
    operands = [w.integers(values, f"{node.name}:{label}") for label, values in columns]
    made = w.emit("Slice", [w.real(node.x, perm), *operands], f"{node.name}:real")
    return w.rounded(node, made, perm)


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
    """Sizes where their ratios are the scales, else the scales."""
    before = node.x.type.shape[1:3]
    ratios = np.array(node.sizes) / before
    if (ratios.astype(np.float32) == np.array(node.scales, np.float32)).all():
        n, h, width, c = node.type.shape
        return ["", w.integers((n, c, h, width), f"{node.name}:sizes")]
    return [w.constant(np.array([1, 1, *node.scales], np.float32), f"{node.name}:scales")]
