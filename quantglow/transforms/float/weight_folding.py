"""Folding of BatchNormalization, scales, shifts and Pad into contractions.

A BatchNormalization is ``x * scale + shift``; one that no contraction takes becomes Mul and Add.
Scales and shifts before or behind a contraction go into its weights and bias, but only while
nothing is fused behind the sum: folding under a fused activation is silently wrong.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantglow.ir.graph.node import Constant, Node, may_change
from quantglow.ir.ops.binary import Add, Binary, Mul
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import Conv, Gemm
from quantglow.ir.ops.normalization import BatchNormalization
from quantglow.ir.ops.pooling import AveragePool, MaxPool, Pool
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.resize import Resize
from quantglow.ir.ops.shape import Pad, Reshape, Transpose
from quantglow.ir.ops.unary import Clip, Relu
from quantglow.ir.ops.windows import Pads, has_padding
from quantglow.ir.symbolic.size import decide
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.transforms.float.arithmetic import plain
from quantglow.transforms.float.constant_folding import (
    absorbs,
    bias_array,
    channel_values,
    float_constant,
    is_float,
    weight_array,
)
from quantglow.transforms.float.layout import behind_moves, move_alike
from quantglow.transforms.rewrite import Uses, decline, rewrite_pass

MAX_SHIFT = 1024.0
"""Maximum distance of the padding from the pixel 0, in pixels: that of images is up to 255."""

NOT_SPATIAL = "not only H and W are padded"


def scale_and_shift(node: BatchNormalization) -> tuple[Array, Array] | None:
    """float64 ``gamma / sqrt(var + eps)`` and ``beta - mean * scale``; None if not constant."""
    parameters = (node.gamma, node.beta, node.mean, node.var)
    if not all(isinstance(p, Constant) for p in parameters):
        return None
    gamma, beta, mean, var = (
        p.value.astype(np.float64) for p in parameters if isinstance(p, Constant)
    )
    scale = gamma / np.sqrt(var + node.epsilon)
    return scale, beta - mean * scale


def _with_affine_result(
    node: Contraction, name: str, scale: Array | None, shift: Array | None, uses: Uses
) -> Contraction:
    """``node(x) * scale + shift`` per output channel, as one contraction called ``name``."""
    bias = bias_array(node).astype(np.float64)
    weights = node.w
    if scale is not None:
        product = weight_array(node) * scale.astype(np.float32)
        weights = float_constant(product, f"{name}:w", uses)
        bias = bias * scale
    if shift is not None:
        bias = bias + shift
    changed = float_constant(bias, f"{name}:b", uses)
    return replace(node, name=name, w=weights, b=changed)  # type: ignore[call-arg]


@rewrite_pass("fold-batch-norm")
def fold_batch_norm(node: Node, uses: Uses) -> Node | None:
    """BN(Conv(x, w, b)) -> Conv(x, w*s, (b - mean)*s + beta), s = gamma / sqrt(var + eps)"""
    if not isinstance(node, BatchNormalization):
        return None
    producer = node.x
    if not isinstance(producer, Contraction) or not absorbs(producer, node, uses):
        return None
    constants = scale_and_shift(node)
    if constants is None:
        return None
    return _with_affine_result(producer, node.name, *constants, uses)


@rewrite_pass("decompose-batch-norm")
def decompose_batch_norm(node: Node, uses: Uses) -> Node | None:
    """BN(x) -> x * s + (beta - mean * s), s = gamma / sqrt(var + eps)"""
    if not isinstance(node, BatchNormalization):
        return None
    constants = scale_and_shift(node)
    if constants is None:
        return None
    scale, shift = constants
    product = Mul(
        name=uses.fresh(f"{node.name}:scaled"),
        x=node.x,
        y=float_constant(scale, f"{node.name}:scale", uses),
    )
    return Add(name=node.name, x=product, y=float_constant(shift, f"{node.name}:shift", uses))


@rewrite_pass("fold-arithmetic")
def fold_arithmetic(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w, b) * c -> Conv(x, w*c, b*c); Conv(x, w, b) + c -> Conv(x, w, b + c)"""
    if not isinstance(node, Add | Mul) or not plain(node):
        return None
    return _fold_into_producer(node, uses)


def _fold_into_producer(node: Binary, uses: Uses) -> Node | None:
    producer = node.x
    if not isinstance(producer, Contraction) or not absorbs(producer, node, uses):
        return None
    c = channel_values(node.y, producer.type.shape[-1], producer.type.rank)
    if c is None:
        return None
    scale, shift = (c, None) if isinstance(node, Mul) else (None, c)
    return _with_affine_result(producer, node.name, scale, shift, uses)


@rewrite_pass("fold-arithmetic-into-consumer")
def fold_arithmetic_into_consumer(node: Node, uses: Uses) -> Node | None:
    """Conv(x * c, w) -> Conv(x, w * c); Conv(x + c, w, b) -> Conv(x, w, b + sum(w * c)), no pads;
    Conv(p * s + t, w) -> Conv(p + t / s, w * s) for bytes p, whose padding is 0 in both

    Elements may be moved between both where c varies along rows that become channels.
    """
    if not isinstance(node, Conv | Gemm) or not _foldable(node):
        return None
    before, moves = behind_moves(node.x, uses)
    if not isinstance(before, Add | Mul) or not plain(before) or not uses.only(node, before):
        return None
    return _fold_into_consumer(node, before, moves, uses) if before.x.type == before.type else None


def _foldable(node: Contraction) -> bool:
    return may_change(node.w) and isinstance(node.b, Constant | None)


def _fold_into_consumer(
    node: Conv | Gemm, before: Binary, moves: list[Reshape | Transpose], uses: Uses
) -> Node | None:
    c = _move_channels(before, moves)
    if c is None:
        return None
    product = weight_array(node) * _by_input_channel(node, c)
    if isinstance(before, Mul):
        x = move_alike(before.x, moves, uses)
        return replace(node, x=x, w=float_constant(product, f"{node.name}:w", uses))
    if isinstance(node, Conv) and has_padding(node.pads):
        scaled = before.x
        if not moves and isinstance(scaled, Mul) and plain(scaled) and _is_image(scaled.x):
            return shift(node, before, scaled, c, uses)
        return decline(node, f"{before.name!r} adds to pixels, but not to the padding of zeros")
    sums = product.astype(np.float64).reshape(-1, product.shape[-1]).sum(axis=0)
    bias = float_constant(bias_array(node) + sums, f"{node.name}:b", uses)
    return replace(node, x=move_alike(before.x, moves, uses), b=bias)


def _move_channels(before: Binary, moves: list[Reshape | Transpose]) -> Array | None:
    """The Constant of an operator as it varies along the last axis behind moves, if only there.

    None for one number and for a Constant of the last axis before moves, as of a normalization:
    folding it would copy weights that are shared with the file.  None where sizes are free: there
    no sample is alone, and rows are not channels.
    """
    if not moves:
        return channel_values(before.y, before.type.shape[-1], before.type.rank)
    c = before.y
    if not isinstance(c, Constant) or not is_float(c):
        return None
    if any(node.has_free_sizes for node in (before, *moves)) or before.type.is_empty:
        return None
    channels = int(moves[0].type.shape[-1])
    if c.value.size < 2 or c.value.size != channels or c.value.shape[-1] == c.value.size:
        return None
    values = np.broadcast_to(c.value, before.type.fixed_shape)
    for move in reversed(moves):
        if isinstance(move, Transpose):
            values = values.transpose(move.perm)
        else:
            values = values.reshape(move.shape)
    rows = values.reshape(-1, channels)
    return np.asarray(rows[0]) if (rows == rows[:1]).all() else None


def shift(node: Conv, before: Binary, scaled: Mul, shift: Array, uses: Uses) -> Node | None:
    """The convolution of shifted bytes: these have one scale for all channels."""
    scale = channel_values(scaled.y, before.type.shape[-1], before.type.rank)
    if scale is None or not uses.only(node, scaled):
        return None
    with np.errstate(all="ignore"):
        pixels = shift.astype(np.float64) / scale
    if not np.abs(pixels).max() <= MAX_SHIFT:
        return decline(node, f"{scaled.name!r} makes no image")
    moved = Add(
        name=uses.fresh(f"{before.name}:shifted"),
        x=scaled.x,
        y=float_constant(pixels, f"{before.name}:shift", uses),
    )
    weights = float_constant(
        weight_array(node) * _by_input_channel(node, scale), f"{node.name}:w", uses
    )
    return replace(node, x=moved, w=weights)


def _is_image(node: Node) -> bool:
    """Whether a value is bytes as floats, also resized ones."""
    while isinstance(node, Resize | Transpose):
        node = node.x
    is_cast = isinstance(node, Elementwise) and len(node.args) == 1 and is_float(node)
    return is_cast and node.operands[0].type.dtype in (DType.U8, DType.I8)


def _by_input_channel(node: Conv | Gemm, c: Array) -> Array:
    """The values of input channels as they multiply the weights."""
    if isinstance(node, Gemm):
        return c[:, None]
    per_group = c.reshape(node.group, -1).T
    return np.repeat(per_group, node.w.type.fixed_shape[3] // node.group, axis=1)


@rewrite_pass("fold-pad")
def fold_pad(node: Node, uses: Uses) -> Node | None:
    """Conv(Pad(x)) -> Conv(x, pads + …) for zeros; pools where their own padding means the same"""
    match node:
        case Conv(x=Pad() as pad):
            return _pad_weights(node, pad) if _spatial(pad) else decline(node, NOT_SPATIAL)
        case AveragePool(x=Pad() as pad):
            is_plain = not node.ceil_mode and not has_padding(node.pads) and node.out is None
            if not is_plain or not _fits(node, pad):
                return decline(node, "its own padding would be another")
            return _pad_weights(replace(node, count_include_pad=True), pad)
        case MaxPool(x=Pad() as pad) if _fits(node, pad) and _neutral_for_max(pad):
            return None if node.ceil_mode else replace(node, x=pad.x, pads=_add(node.pads, pad))
    return None


def _pad_weights(node: Conv | AveragePool, pad: Pad) -> Node | None:
    """The node with the pads of ``pad``, if these are zeros."""
    if pad.value != 0:
        return decline(node, f"{pad.name!r} pads with {pad.value:g}")
    return replace(node, x=pad.x, pads=_add(node.pads, pad))


def _spatial(pad: Pad) -> bool:
    """Whether only H and W are padded."""
    return not has_padding((pad.before[0], pad.before[3], pad.after[0], pad.after[3]))


def _fits(node: Pool, pad: Pad) -> bool:
    """Whether every window keeps at least one element that is not padding."""
    pads = _add(node.pads, pad)
    reach = [node.dilations[i] * (node.kernel[i] - 1) for i in (0, 1)]
    plain = node.dilations == (1, 1)
    return _spatial(pad) and plain and all(decide(pads[i] <= reach[i % 2]) for i in range(4))


def _neutral_for_max(pad: Pad) -> bool:
    """Padding with -inf; or with zeros around values that are never negative."""
    if pad.value == -math.inf:
        return True
    x = pad.x
    never_negative = isinstance(x, Relu) or (isinstance(x, Clip) and x.low >= 0)
    return pad.value == 0 and never_negative


def _add(pads: Pads, pad: Pad) -> Pads:
    top, left, bottom, right = pads
    (_, *before, _), (_, *after, _) = pad.before, pad.after
    return top + before[0], left + before[1], bottom + after[0], right + after[1]
