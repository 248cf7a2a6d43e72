"""Constant scales and shifts before a contraction, into its weights and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node, may_change
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import Conv, Gemm
from quantglow.ops.primitives import Elementwise
from quantglow.ops.resize import Resize
from quantglow.ops.shape import Reshape, Transpose
from quantglow.passes.constants import bias_of, channel_values, float_constant, is_float, weights_of
from quantglow.passes.layout import behind_moves, moved_alike
from quantglow.passes.simplify_arithmetic import plain
from quantglow.types import DType

MAX_SHIFT = 1024.0
"""Maximum distance of the padding from the pixel 0, in pixels: that of images is up to 255."""


@rewrite_pass("fold-arithmetic-into-consumer")
def fold_arithmetic_into_consumer(node: Node, uses: Uses) -> Node | None:
    """Conv(x * c, w) -> Conv(x, w * c); Conv(x + c, w, b) -> Conv(x, w, b + sum(w * c)), no pads;
    Conv(p * s + t, w) -> Conv(p + t / s, w * s) for bytes p, whose padding is 0 in both

    Elements may be moved between both where c varies along rows that become channels.
    """
    if not isinstance(node, Conv | Gemm) or not foldable(node):
        return None
    before, moves = behind_moves(node.x, uses)
    if not isinstance(before, Add | Mul) or not plain(before) or not uses.only(node, before):
        return None
    return fold_into_consumer(node, before, moves, uses) if before.x.type == before.type else None


def foldable(node: Contraction) -> bool:
    return may_change(node.w) and isinstance(node.b, Constant | None)


def fold_into_consumer(
    node: Conv | Gemm, before: Binary, moves: list[Reshape | Transpose], uses: Uses
) -> Node | None:
    c = moved_channels(before, moves)
    if c is None:
        return None
    product = weights_of(node) * by_input_channel(node, c)
    if isinstance(before, Mul):
        x = moved_alike(before.x, moves, uses)
        return replace(node, x=x, w=float_constant(product, f"{node.name}:w", uses))
    if isinstance(node, Conv) and any(node.pads):
        scaled = before.x
        if not moves and isinstance(scaled, Mul) and plain(scaled) and is_image(scaled.x):
            return shifted(node, before, scaled, c, uses)
        return declined(node, f"{before.name!r} adds to pixels, but not to the padding of zeros")
    sums = product.astype(np.float64).reshape(-1, product.shape[-1]).sum(axis=0)
    bias = float_constant(bias_of(node) + sums, f"{node.name}:b", uses)
    return replace(node, x=moved_alike(before.x, moves, uses), b=bias)


def moved_channels(before: Binary, moves: list[Reshape | Transpose]) -> Array | None:
    """The Constant of an operator as it varies along the last axis behind moves, if only there.

    None for one number and for a Constant of the last axis before moves, as of a normalization:
    folding it would copy weights that are shared with the file.  None where sizes are free: there
    no sample is alone, and rows are not channels.
    """
    if not moves:
        return channel_values(before.y, before.type.shape[-1], before.type.rank)
    c, channels = before.y, moves[0].type.shape[-1]
    if not isinstance(c, Constant) or not is_float(c):
        return None
    if any(node.has_free_sizes for node in (before, *moves)) or not before.type.size:
        return None
    if c.type.size < 2 or c.type.size != channels or c.type.shape[-1] == c.type.size:
        return None
    values = np.broadcast_to(c.value, before.type.shape)
    for move in reversed(moves):
        if isinstance(move, Transpose):
            values = values.transpose(move.perm)
        else:
            values = values.reshape(move.shape)
    rows = values.reshape(-1, channels)
    return np.asarray(rows[0]) if (rows == rows[:1]).all() else None


def shifted(node: Conv, before: Binary, scaled: Mul, shift: Array, uses: Uses) -> Node | None:
    """The convolution of shifted bytes: these have one scale for all channels."""
    scale = channel_values(scaled.y, before.type.shape[-1], before.type.rank)
    if scale is None or not uses.only(node, scaled):
        return None
    with np.errstate(all="ignore"):
        pixels = shift.astype(np.float64) / scale
    if not np.abs(pixels).max() <= MAX_SHIFT:
        return declined(node, f"{scaled.name!r} makes no image")
    moved = Add(
        name=uses.fresh(f"{before.name}:shifted"),
        x=scaled.x,
        y=float_constant(pixels, f"{before.name}:shift", uses),
    )
    weights = float_constant(
        weights_of(node) * by_input_channel(node, scale), f"{node.name}:w", uses
    )
    return replace(node, x=moved, w=weights)


def is_image(node: Node) -> bool:
    """Whether a value is bytes as floats, also resized ones."""
    while isinstance(node, Resize | Transpose):
        node = node.x
    is_cast = isinstance(node, Elementwise) and len(node.args) == 1 and is_float(node)
    return is_cast and node.operands[0].type.dtype in (DType.U8, DType.I8)


def by_input_channel(node: Conv | Gemm, c: Array) -> Array:
    """The values of input channels as they multiply the weights."""
    if isinstance(node, Gemm):
        return c[:, None]
    per_group = c.reshape(node.group, -1).T
    return np.repeat(per_group, node.w.type.shape[3] // node.group, axis=1)
