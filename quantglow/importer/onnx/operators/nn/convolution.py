"""Importers of Conv and ConvTranspose; windows, also over three spatial axes.

``WindowGeometry`` has kernel, strides, dilations and pads of convolutions and pools, with
``auto_pad``
resolved.  Volumes run as images: a convolution reads the slices under its window side by side as
channels of one image for each result along the depth, so the products are summed and rounded once.
A pool goes over planes first, then along the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.tensor.shape import (
    channels_first,
    channels_last,
    from_nhwc,
    to_nhwc,
)
from quantglow.importer.onnx.operators.tensor.slicing import SliceRange, along_span
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.convolution import Conv, ConvTranspose
from quantglow.ir.ops.shape import Concat, Pad, Reshape
from quantglow.ir.ops.windows import Pads, Pair
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_max, fixed
from quantglow.support.arrays import Array

VOLUME_RANK = 5
"""Number of axes of a batch of volumes."""


@dataclass(frozen=True)
class WindowGeometry:
    """Pairs are (H, W); pads top, left, bottom, right."""

    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: Pads

    @property
    def reach(self) -> Pair:
        """Extent of the dilated kernel."""
        (dh, dw), (kh, kw) = self.dilations, self.kernel
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1


def parse_windows(call: Call, kernel: Shape) -> WindowGeometry:
    """The attributes of ``call``, whose pads (if explicit) belong to its input."""
    rank = len(kernel)
    pads = _spatial_pads(call, rank)
    return WindowGeometry(
        kernel=_pair(kernel),
        strides=_pair(call.integers("strides", (1,) * rank)),
        dilations=_pair(call.integers("dilations", (1,) * rank)),
        pads=(*_pair(pads[:rank], 0), *_pair(pads[rank:], 0)),
    )


def _spatial_pads(call: Call, rank: int) -> tuple[int, ...]:
    """Explicit pads before all ``rank`` axes, then behind them."""
    pads = call.integers("pads", (0,) * 2 * rank)
    if len(pads) != 2 * rank:
        raise ValueError(f"pads {pads} do not fit {rank} spatial axes")
    if min(pads) < 0:
        raise Unsupported(f"negative pads {list(pads)}")
    return pads


def _pair(values: Shape, absent: int = 1) -> Pair:
    """(H, W) of attributes with one or two entries; one spatial axis becomes W."""
    if len(values) not in (1, 2):
        raise Unsupported(f"{len(values)} spatial axes are too many")
    pair = fixed(values)
    if min(pair) < absent:
        raise ValueError(f"{values} must be at least {absent}")
    return (pair[0], pair[1]) if len(pair) == 2 else (absent, pair[0])


def auto_padded(call: Call, windows: WindowGeometry, size: tuple[Dim, Dim]) -> Pads:
    """Pads of windows that run over an input of ``size``."""
    mode = call.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return windows.pads
    if mode == "VALID":
        return (0, 0, 0, 0)
    totals = [
        decide_max((-(-d // s) - 1) * s + r - d, 0)
        for d, s, r in zip(size, windows.strides, windows.reach, strict=True)
    ]
    return _distribute(totals, upper=mode == "SAME_UPPER")


def _distribute(totals: Sequence[Dim], upper: bool) -> Pads:
    """Padding divided between both ends; an odd row goes to the end if ``upper``."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    before, after = (small, large) if upper else (large, small)
    return (before[0], before[1], after[0], after[1])


Pooled = Callable[[str, Node, WindowGeometry], Node]
"""A pool under a name over an image [N, H, W, C], whose pads are those of the windows."""


def is_volume(call: Call) -> bool:
    """Whether the first operand has three spatial axes."""
    return len(call.shape(0)) == VOLUME_RANK


def _windows_of_volume(call: Call, kernel: Shape, x: Node) -> tuple[WindowGeometry, WindowGeometry]:
    """The windows along the depth of x [N, D, H, W, C], and over planes, with pads resolved."""
    strides, dilations = (call.integers(name, (1, 1, 1)) for name in ("strides", "dilations"))
    pads = _spatial_pads(call, 3)
    depth = WindowGeometry(
        kernel=_pair((kernel[0], 1)),
        strides=_pair((strides[0], 1)),
        dilations=_pair((dilations[0], 1)),
        pads=(pads[0], 0, pads[3], 0),
    )
    plane = WindowGeometry(
        kernel=_pair(kernel[1:]),
        strides=_pair(strides[1:]),
        dilations=_pair(dilations[1:]),
        pads=(pads[1], pads[2], pads[4], pads[5]),
    )
    _, d, h, w, _ = x.type.shape
    return (
        replace(depth, pads=auto_padded(call, depth, (d, 1))),
        replace(plane, pads=auto_padded(call, plane, (h, w))),
    )


def bias(call: Call) -> Node | None:
    return call.weights(2, "f32", lambda b: b.reshape(-1)) if call.has(2) else None


def _volume_conv(call: Call) -> Node:
    """Weights [O, C/group, KD, KH, KW] become [KH, KW, KD * C/group, O]."""
    x = channels_last(call, call.node(0), call.value_name(0))
    depth, plane = _windows_of_volume(call, call.shape(1)[2:], x)
    group = call.integer("group", 1)
    image, count = _side_by_side(call, x, depth, group)

    def lay_out(w: Array) -> Array:
        outputs, channels, kd, kh, kw = w.shape
        return w.transpose(3, 4, 2, 1, 0).reshape(kh, kw, kd * channels, outputs)

    convolved = Conv(
        name=call.result,
        x=image,
        w=call.weights(1, "hwio", lay_out),
        b=bias(call),
        strides=plane.strides,
        dilations=plane.dilations,
        pads=plane.pads,
        group=group,
    )
    return volumes(call, convolved, count)


def _volume_conv_transpose(call: Call) -> Node:
    """Weights [C, O/group, KD, KH, KW] become [KH, KW, KD * C/group, O], reversed in depth."""
    if call.attributes.get("output_shape") or call.text("auto_pad", "NOTSET") != "NOTSET":
        raise Unsupported("over three spatial axes it has pads of a wanted size")
    x, group = channels_last(call, call.node(0), call.value_name(0)), call.integer("group", 1)
    kernel, pads = fixed(call.shape(1)[2:]), _spatial_pads(call, 3)
    strides, dilations = (call.integers(name, (1, 1, 1)) for name in ("strides", "dilations"))
    extra, around = call.integers("output_padding", (0, 0, 0)), dilations[0] * (kernel[0] - 1)
    wide = _with_borders(
        call, spread(call, x, strides[0]), around - pads[0], around - pads[3] + extra[0]
    )
    depth = WindowGeometry((kernel[0], 1), (1, 1), (dilations[0], 1), (0, 0, 0, 0))
    image, count = _side_by_side(call, wide, depth, group)

    def lay_out(w: Array) -> Array:
        c, outputs, kd, kh, kw = w.shape
        grouped = w[:, :, ::-1].reshape(group, c // group, outputs, kd, kh, kw)
        kernel_first = grouped.transpose(4, 5, 3, 1, 0, 2)
        return kernel_first.reshape(kh, kw, kd * c // group, group * outputs)

    convolved = ConvTranspose(
        name=call.result,
        x=image,
        w=call.weights(1, "hwio", lay_out),
        b=bias(call),
        strides=_pair(strides[1:]),
        dilations=_pair(dilations[1:]),
        pads=(pads[1], pads[2], pads[4], pads[5]),
        output_padding=_pair(extra[1:], 0),
        group=group,
    )
    return volumes(call, convolved, count)


def spread(call: Call, x: Node, stride: int) -> Node:
    """The slices of x [N, D, H, W, C] with zeros between them."""
    if stride == 1:
        return x
    n, d, h, w, c = x.type.shape
    rows = Reshape(name=call.derive("rows"), x=x, shape=(n, d, 1, h * w * c))
    after = (0, 0, stride - 1, 0)
    wide = Pad(name=call.derive("spread"), x=rows, before=(0, 0, 0, 0), after=after)
    slices = Reshape(name=call.derive("slices"), x=wide, shape=(n, d * stride, h, w, c))
    return along_span(call.derive("spread"), slices, 1, SliceRange(0, (d - 1) * stride + 1))


def _with_borders(call: Call, x: Node, before: Dim, after: Dim) -> Node:
    """x with zeros before and behind its slices; fewer slices where these are negative."""
    if decide(before < 0) or decide(after < 0):
        cut = decide_max(-before, 0), decide_max(-after, 0)
        x = along_span(call.derive("cut"), x, 1, SliceRange(cut[0], x.type.shape[1] - sum(cut)))
        before, after = decide_max(before, 0), decide_max(after, 0)
    if decide(before == 0) and decide(after == 0):
        return x
    low, high = ((0, width, 0, 0, 0) for width in (before, after))
    return Pad(name=call.derive("padded"), x=x, before=low, after=high)


def _side_by_side(call: Call, x: Node, depth: WindowGeometry, group: int) -> tuple[Node, Dim]:
    """The slices under each window along the depth as channels of an image [N * OD, H, W, KD * C],
    those of a group side by side; and OD."""
    x = _with_borders(call, x, depth.pads[0], depth.pads[2])
    n, d, h, w, c = x.type.shape
    (kd, _), (step, _), (gap, _) = depth.kernel, depth.strides, depth.dilations
    count = (d - depth.reach[0]) // step + 1
    grouped = Reshape(name=call.derive("groups"), x=x, shape=(n, d, h, w, group, c // group))
    parts = tuple(
        along_span(call.derive("slice"), grouped, 1, SliceRange(offset * gap, count, step))
        for offset in range(kd)
    )
    joined = Concat(name=call.derive("slices"), parts=parts, axis=5) if kd > 1 else parts[0]
    shape = (n * count, h, w, kd * c)
    return Reshape(name=call.derive("images"), x=joined, shape=shape), count


def volumes(call: Call, y: Node, count: Dim) -> Node:
    """Images [N * D, H, W, C] as the result [N, C, D, H, W]."""
    n, h, w, c = y.type.shape
    shape = (n // count, count, h, w, c)
    return channels_first(call, Reshape(name=call.derive("volumes"), x=y, shape=shape))


def pool_volume(call: Call, name: str, x: Node, kernel: Shape, pool: Pooled) -> Node:
    """``pool`` over the planes of x [N, D, H, W, C], then along its depth, as [N * OD, H, W, C]."""
    depth, plane = _windows_of_volume(call, kernel, x)
    n, d, h, w, c = x.type.shape
    flat = Reshape(name=call.derive("images"), x=x, shape=(n * d, h, w, c))
    planes = pool(call.derive("planes"), flat, plane)
    _, oh, ow, _ = planes.type.shape
    columns = Reshape(name=call.derive("columns"), x=planes, shape=(n, d, oh * ow, c))
    along = pool(name, columns, depth)
    count = along.type.shape[1]
    return Reshape(name=call.derive("pooled"), x=along, shape=(n * count, oh, ow, c))


@importer("Conv")
def conv(call: Call) -> Node:
    """Weights [O, C/group, KH, KW] become [KH, KW, C/group, O]."""
    if is_volume(call):
        return _volume_conv(call)
    x = to_nhwc(call)
    windows = parse_windows(call, call.shape(1)[2:])
    convolved = Conv(
        name=call.result,
        x=x,
        w=call.weights(1, "hwio", lambda w: image_kernel(w).transpose(2, 3, 1, 0)),
        b=bias(call),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=auto_padded(call, windows, image_size(x)),
        group=call.integer("group", 1),
    )
    return from_nhwc(call, convolved)


@importer("ConvTranspose")
def conv_transpose(call: Call) -> Node:
    """Weights [C, O/group, KH, KW] become [KH, KW, C/group, O]."""
    if is_volume(call):
        return _volume_conv_transpose(call)
    x = to_nhwc(call)
    group = call.integer("group", 1)
    windows = parse_windows(call, call.shape(1)[2:])
    pads, output_padding = _transposed_padding(call, windows, image_size(x))
    convolved = ConvTranspose(
        name=call.result,
        x=x,
        w=call.weights(1, "hwio", lambda w: _transpose_kernel(image_kernel(w), group)),
        b=bias(call),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=pads,
        output_padding=output_padding,
        group=group,
    )
    return from_nhwc(call, convolved)


def image_size(x: Node) -> tuple[Dim, Dim]:
    """(H, W) of an NHWC value."""
    return x.type.shape[1], x.type.shape[2]


def image_kernel(w: Array) -> Array:
    """A one-dimensional kernel [A, B, K] as [A, B, 1, K]."""
    return w[:, :, None] if w.ndim == 3 else w


def _transpose_kernel(w: Array, group: int) -> Array:
    channels, o_group, kh, kw = w.shape
    split = w.reshape(group, channels // group, o_group, kh, kw)
    return split.transpose(3, 4, 1, 0, 2).reshape(kh, kw, channels // group, group * o_group)


def _transposed_padding(
    call: Call, windows: WindowGeometry, size: tuple[Dim, Dim]
) -> tuple[Pads, Pair]:
    """(pads, output_padding) that give the result the size ONNX asks for."""
    extra = _pair(call.integers("output_padding", (0,) * (len(call.shape(0)) - 2)), 0)
    mode = call.text("auto_pad", "NOTSET")
    output_size: tuple[Dim, Dim] | None = None
    if call.attributes.get("output_shape"):
        output_size = _pair(call.integers("output_shape", ())[-(len(call.shape(0)) - 2) :])
    elif mode.startswith("SAME"):
        output_size = (size[0] * windows.strides[0], size[1] * windows.strides[1])
    elif mode == "VALID":
        return (0, 0, 0, 0), extra
    if output_size is None:
        return windows.pads, extra
    axes = zip(size, windows.strides, windows.reach, extra, output_size, strict=True)
    # The size of the image is in both terms of SAME, and cancels out.
    surplus = [int((d - 1) * s + reach + more - result) for d, s, reach, more, result in axes]
    pads = _distribute([max(rows, 0) for rows in surplus], upper=mode == "SAME_UPPER")
    return pads, (extra[0] + max(-surplus[0], 0), extra[1] + max(-surplus[1], 0))
