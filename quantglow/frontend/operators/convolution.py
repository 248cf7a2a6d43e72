"""Importers of Conv and ConvTranspose."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, importer
from quantglow.frontend.operators.layout import from_nhwc, to_nhwc
from quantglow.frontend.operators.volumes import (
    bias,
    is_volume,
    volume_conv,
    volume_conv_transpose,
)
from quantglow.frontend.operators.windows import Windows, auto_padded, pair, shared_out, windows_of
from quantglow.graph.node import Node
from quantglow.ops.convolution import Conv, ConvTranspose
from quantglow.ops.windows import Pads, Pair


@importer("Conv")
def conv(call: Call) -> Node:
    """Weights [O, C/group, KH, KW] become [KH, KW, C/group, O]."""
    if is_volume(call):
        return volume_conv(call)
    x = to_nhwc(call)
    windows = windows_of(call, call.shape(1)[2:])
    made = Conv(
        name=call.result,
        x=x,
        w=call.weights(1, "hwio", lambda w: image_kernel(w).transpose(2, 3, 1, 0)),
        b=bias(call),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=auto_padded(call, windows, image_size(x)),
        group=call.integer("group", 1),
    )
    return from_nhwc(call, made)


@importer("ConvTranspose")
def conv_transpose(call: Call) -> Node:
    """Weights [C, O/group, KH, KW] become [KH, KW, C/group, O]."""
    if is_volume(call):
        return volume_conv_transpose(call)
    x = to_nhwc(call)
    group = call.integer("group", 1)
    windows = windows_of(call, call.shape(1)[2:])
    pads, output_padding = transposed_padding(call, windows, image_size(x))
    made = ConvTranspose(
        name=call.result,
        x=x,
        w=call.weights(1, "hwio", lambda w: transposed_kernel(image_kernel(w), group)),
        b=bias(call),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=pads,
        output_padding=output_padding,
        group=group,
    )
    return from_nhwc(call, made)


def image_size(x: Node) -> Pair:
    """(H, W) of an NHWC value."""
    return x.type.shape[1], x.type.shape[2]


def image_kernel(w: Array) -> Array:
    """A one-dimensional kernel [A, B, K] as [A, B, 1, K]."""
    return w[:, :, None] if w.ndim == 3 else w


def transposed_kernel(w: Array, group: int) -> Array:
    channels, o_group, kh, kw = w.shape
    split = w.reshape(group, channels // group, o_group, kh, kw)
    return split.transpose(3, 4, 1, 0, 2).reshape(kh, kw, channels // group, group * o_group)


def transposed_padding(call: Call, windows: Windows, size: Pair) -> tuple[Pads, Pair]:
    """(pads, output_padding) that give the result the size ONNX asks for."""
    extra = pair(call.integers("output_padding", (0,) * (len(call.shape(0)) - 2)), 0)
    mode = call.text("auto_pad", "NOTSET")
    wanted: Pair | None = None
    if call.attributes.get("output_shape"):
        wanted = pair(call.integers("output_shape", ())[-(len(call.shape(0)) - 2) :])
    elif mode.startswith("SAME"):
        wanted = (size[0] * windows.strides[0], size[1] * windows.strides[1])
    elif mode == "VALID":
        return (0, 0, 0, 0), extra
    if wanted is None:
        return windows.pads, extra
    full = np.subtract(size, 1) * windows.strides + windows.reach + np.array(extra)
    surplus = full - wanted
    pads = shared_out([max(int(t), 0) for t in surplus], upper=mode == "SAME_UPPER")
    grown = np.array(extra) + np.maximum(-surplus, 0)
    return pads, (int(grown[0]), int(grown[1]))
