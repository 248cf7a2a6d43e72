"""Convolutions and pools over three spatial axes, as those over images.

A convolution reads the slices under its window side by side as channels of one image for each
result along the depth: the products are summed and rounded once.  A pool goes over planes first,
then along the depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.frontend.operators.layout import channels_first, channels_last
from quantglow.frontend.operators.slicing import Span, along_span
from quantglow.frontend.operators.windows import Windows, auto_padded, pair, spatial_pads
from quantglow.graph.node import Node
from quantglow.ops.convolution import Conv, ConvTranspose
from quantglow.ops.shape import Concat, Pad, Reshape

VOLUME_RANK = 5
"""Number of axes of a batch of volumes."""

Pooled = Callable[[str, Node, Windows], Node]
"""A pool under a name over an image [N, H, W, C], whose pads are those of the windows."""


def is_volume(call: Call) -> bool:
    """Whether the first operand has three spatial axes."""
    return len(call.shape(0)) == VOLUME_RANK


def windows_of_volume(call: Call, kernel: tuple[int, ...], x: Node) -> tuple[Windows, Windows]:
    """The windows along the depth of x [N, D, H, W, C], and over planes, with pads resolved."""
    strides, dilations = (call.integers(name, (1, 1, 1)) for name in ("strides", "dilations"))
    pads = spatial_pads(call, 3)
    depth = Windows(
        kernel=pair((kernel[0], 1)),
        strides=pair((strides[0], 1)),
        dilations=pair((dilations[0], 1)),
        pads=(pads[0], 0, pads[3], 0),
    )
    plane = Windows(
        kernel=pair(kernel[1:]),
        strides=pair(strides[1:]),
        dilations=pair(dilations[1:]),
        pads=(pads[1], pads[2], pads[4], pads[5]),
    )
    _, d, h, w, _ = x.type.shape
    return (
        replace(depth, pads=auto_padded(call, depth, (d, 1))),
        replace(plane, pads=auto_padded(call, plane, (h, w))),
    )


def bias(call: Call) -> Node | None:
    return call.weights(2, "f32", lambda b: b.reshape(-1)) if call.has(2) else None


def volume_conv(call: Call) -> Node:
    """Weights [O, C/group, KD, KH, KW] become [KH, KW, KD * C/group, O]."""
    x = channels_last(call, call.node(0), call.value_name(0))
    depth, plane = windows_of_volume(call, call.shape(1)[2:], x)
    group = call.integer("group", 1)
    image, count = side_by_side(call, x, depth, group)

    def laid_out(w: Array) -> Array:
        outputs, channels, kd, kh, kw = w.shape
        return w.transpose(3, 4, 2, 1, 0).reshape(kh, kw, kd * channels, outputs)

    made = Conv(
        name=call.result,
        x=image,
        w=call.weights(1, "hwio", laid_out),
        b=bias(call),
        strides=plane.strides,
        dilations=plane.dilations,
        pads=plane.pads,
        group=group,
    )
    return volumes(call, made, count)


def volume_conv_transpose(call: Call) -> Node:
    """Weights [C, O/group, KD, KH, KW] become [KH, KW, KD * C/group, O], turned round in depth."""
    if call.attributes.get("output_shape") or call.text("auto_pad", "NOTSET") != "NOTSET":
        raise Unsupported("over three spatial axes it has pads of a wanted size")
    x, group = channels_last(call, call.node(0), call.value_name(0)), call.integer("group", 1)
    kernel, pads = call.shape(1)[2:], spatial_pads(call, 3)
    strides, dilations = (call.integers(name, (1, 1, 1)) for name in ("strides", "dilations"))
    extra, around = call.integers("output_padding", (0, 0, 0)), dilations[0] * (kernel[0] - 1)
    wide = with_borders(
        call, spread(call, x, strides[0]), around - pads[0], around - pads[3] + extra[0]
    )
    depth = Windows((kernel[0], 1), (1, 1), (dilations[0], 1), (0, 0, 0, 0))
    image, count = side_by_side(call, wide, depth, group)

    def laid_out(w: Array) -> Array:
        c, outputs, kd, kh, kw = w.shape
        grouped = w[:, :, ::-1].reshape(group, c // group, outputs, kd, kh, kw)
        taps = grouped.transpose(4, 5, 3, 1, 0, 2)
        return taps.reshape(kh, kw, kd * c // group, group * outputs)

    made = ConvTranspose(
        name=call.result,
        x=image,
        w=call.weights(1, "hwio", laid_out),
        b=bias(call),
        strides=pair(strides[1:]),
        dilations=pair(dilations[1:]),
        pads=(pads[1], pads[2], pads[4], pads[5]),
        output_padding=pair(extra[1:], 0),
        group=group,
    )
    return volumes(call, made, count)


def spread(call: Call, x: Node, stride: int) -> Node:
    """The slices of x [N, D, H, W, C] with zeros between them."""
    if stride == 1:
        return x
    n, d, h, w, c = x.type.shape
    rows = Reshape(name=call.derived("rows"), x=x, shape=(n, d, 1, h * w * c))
    after = (0, 0, stride - 1, 0)
    wide = Pad(name=call.derived("spread"), x=rows, before=(0, 0, 0, 0), after=after)
    slices = Reshape(name=call.derived("slices"), x=wide, shape=(n, d * stride, h, w, c))
    return along_span(call.derived("spread"), slices, 1, Span(0, (d - 1) * stride + 1))


def with_borders(call: Call, x: Node, before: int, after: int) -> Node:
    """x with zeros before and behind its slices; fewer slices where these are negative."""
    if before < 0 or after < 0:
        cut = max(-before, 0), max(-after, 0)
        x = along_span(call.derived("cut"), x, 1, Span(cut[0], x.type.shape[1] - sum(cut)))
        before, after = max(before, 0), max(after, 0)
    if not (before or after):
        return x
    low, high = ((0, width, 0, 0, 0) for width in (before, after))
    return Pad(name=call.derived("padded"), x=x, before=low, after=high)


def side_by_side(call: Call, x: Node, depth: Windows, group: int) -> tuple[Node, int]:
    """The slices under each window along the depth as channels of an image [N * OD, H, W, KD * C],
    those of a group side by side; and OD."""
    x = with_borders(call, x, depth.pads[0], depth.pads[2])
    n, d, h, w, c = x.type.shape
    (taps, _), (step, _), (gap, _) = depth.kernel, depth.strides, depth.dilations
    count = (d - depth.reach[0]) // step + 1
    grouped = Reshape(name=call.derived("groups"), x=x, shape=(n, d, h, w, group, c // group))
    parts = tuple(
        along_span(call.derived("slice"), grouped, 1, Span(tap * gap, count, step))
        for tap in range(taps)
    )
    joined = Concat(name=call.derived("slices"), parts=parts, axis=5) if taps > 1 else parts[0]
    shape = (n * count, h, w, taps * c)
    return Reshape(name=call.derived("images"), x=joined, shape=shape), count


def volumes(call: Call, y: Node, count: int) -> Node:
    """Images [N * D, H, W, C] as the result [N, C, D, H, W]."""
    n, h, w, c = y.type.shape
    shape = (n // count, count, h, w, c)
    return channels_first(call, Reshape(name=call.derived("volumes"), x=y, shape=shape))


def pooled_volume(call: Call, name: str, x: Node, kernel: tuple[int, ...], pool: Pooled) -> Node:
    """``pool`` over the planes of x [N, D, H, W, C], then along its depth, as [N * OD, H, W, C]."""
    depth, plane = windows_of_volume(call, kernel, x)
    n, d, h, w, c = x.type.shape
    flat = Reshape(name=call.derived("images"), x=x, shape=(n * d, h, w, c))
    planes = pool(call.derived("planes"), flat, plane)
    _, oh, ow, _ = planes.type.shape
    columns = Reshape(name=call.derived("columns"), x=planes, shape=(n, d, oh * ow, c))
    along = pool(name, columns, depth)
    count = along.type.shape[1]
    return Reshape(name=call.derived("pooled"), x=along, shape=(n * count, oh, ow, c))
