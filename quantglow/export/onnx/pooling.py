"""Export of pools, reductions and normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.export.onnx.writer import (
    OnnxValue,
    OnnxWriter,
    Perm,
    channels_first,
    export_rule,
    identity,
    source,
)
from quantglow.ir.ops import (
    LRN,
    AveragePool,
    BatchNormalization,
    LayerNormalization,
    LogSoftmax,
    MaxPool,
    Pad,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Softmax,
)
from quantglow.ir.ops.pooling import Pool
from quantglow.ir.symbolic.size import Shape, is_free
from quantglow.support.errors import ModelError

IMAGE = channels_first(4)


@export_rule(MaxPool)
def max_pool(node: MaxPool, w: OnnxWriter) -> OnnxValue:
    result = w.emit(
        "MaxPool", [pool(node, w)], f"{node.name}:real", dilations=node.dilations, **windows(node)
    )
    return w.rounded(node, result, IMAGE)


@export_rule(AveragePool)
def average_pool(node: AveragePool, w: OnnxWriter) -> OnnxValue:
    attributes: dict[str, Any] = windows(node)
    if node.dilations != (1, 1):
        w.require(19)
        attributes["dilations"] = node.dilations
    mean = w.emit(
        "AveragePool",
        [pool(node, w)],
        f"{node.name}:real",
        count_include_pad=int(node.count_include_pad),
        **attributes,
    )
    return w.rounded(node, mean, IMAGE)


def pool(node: Pool, w: OnnxWriter) -> str:
    """The image.  onnxruntime would fold a Pad into the pool, also where the pool's padding is
    another value, or must be smaller than the window."""
    x = w.real(node.x, IMAGE)
    padded = isinstance(source(node.x, IMAGE)[0], Pad) and node.x.type.dtype.is_float
    return w.opaque(x, node.name) if padded else x


def windows(node: Pool) -> dict[str, Any]:
    """Attributes of the windows.

    ONNX versions disagree on ``ceil_mode``, so it is written as padding behind the image where
    that is the same: the padding does not count, and is smaller than the kernel.
    """
    pads: Shape = node.pads
    ceil_mode = node.ceil_mode
    counts_padding = isinstance(node, AveragePool) and node.count_include_pad
    is_fixed = not any(map(is_free, node.x.type.shape[1:3]))
    if ceil_mode and is_fixed and not counts_padding:
        after = tuple(_padding_behind(node, axis) for axis in (0, 1))
        if after[0] < node.kernel[0] and after[1] < node.kernel[1]:
            pads, ceil_mode = (*node.pads[:2], *after), False
    return {
        "kernel_shape": node.kernel,
        "strides": node.strides,
        "pads": pads,
        "ceil_mode": int(ceil_mode),
    }


def _padding_behind(node: Pool, axis: int) -> int:
    """The padding that the last window along H (0) or W (1) needs behind the image."""
    size, count = int(node.x.type.shape[axis + 1]), int(node.type.shape[axis + 1])
    reach = node.dilations[axis] * (node.kernel[axis] - 1) + 1
    return max((count - 1) * node.strides[axis] + reach - size - int(node.pads[axis]), 0)


@export_rule(ReduceMean, ReduceSum, ReduceMax, ReduceMin)
def reduction(node: Any, w: OnnxWriter) -> OnnxValue:
    """The mean of an image has an operator of its own, which more runtimes know in int8."""
    if isinstance(node, ReduceMean) and (node.axes, node.x.type.rank) == ((1, 2), 4):
        return _image_mean(node, w)
    perm = w.order(node.x)
    axes = sorted(perm.index(a) for a in node.axes)
    # Without axes ONNX reduces all of them, unless told not to.
    result = w.emit(
        node.op,
        [w.real(node.x, perm), w.integers(axes, f"{node.name}:axes")],
        f"{node.name}:real",
        keepdims=int(node.keepdims),
        noop_with_empty_axes=int(not axes),
    )
    return w.rounded(node, result, perm if node.keepdims else _without(perm, node.axes))


def _image_mean(node: ReduceMean, w: OnnxWriter) -> OnnxValue:
    mean = w.emit("GlobalAveragePool", [w.real(node.x, IMAGE)], f"{node.name}:image")
    whole = w.rounded(node, mean, IMAGE)
    if node.keepdims:
        return whole
    if node.out is None:
        return OnnxValue(w.reshaped(mean, node.type.shape, node.name), identity(2))
    flat = w.reshaped(
        w.dequantize(whole.name, node.type, identity(2), node.name), node.type.shape, node.name
    )
    return w.rounded(node, flat, identity(2))


def _without(perm: Perm, axes: tuple[int, ...]) -> Perm:
    """The order of the axes that are left."""
    remaining = [a for a in range(len(perm)) if a not in axes]
    return tuple(remaining.index(p) for p in perm if p in remaining)


@export_rule(BatchNormalization)
def batch_normalization(node: BatchNormalization, w: OnnxWriter) -> OnnxValue:
    if node.type.rank < 2:
        raise ModelError(
            f"{node!r} cannot be written as ONNX, whose BatchNormalization needs two axes. "
            "Remedy: optimize the graph before exporting it."
        )
    perm = channels_first(node.type.rank)
    parameters = [w.stored(p) for p in (node.gamma, node.beta, node.mean, node.var)]
    operands = [w.real(node.x, perm), *parameters]
    return OnnxValue(w.emit(node.op, operands, node.name, epsilon=node.epsilon), perm)


@export_rule(LayerNormalization)
def layer_normalization(node: LayerNormalization, w: OnnxWriter) -> OnnxValue:
    """ONNX normalizes over all axes from one on, and cannot do without a scale."""
    perm = identity(node.type.rank)
    scale = ones(node, w) if node.gamma is None else w.real(node.gamma)
    shift = [] if node.beta is None else [w.real(node.beta)]
    operands = [w.real(node.x, perm), scale, *shift]
    result = w.emit(node.op, operands, f"{node.name}:real", epsilon=node.epsilon)
    return w.rounded(node, result, perm)


def ones(node: LayerNormalization, w: OnnxWriter) -> str:
    """A scale of 1 for each element that is normalized."""
    one, size = np.ones(1, np.float32), node.type.shape[-1:]
    if not any(map(is_free, size)):
        return w.constant(np.repeat(one, int(size[0])), f"{node.name}:scale")
    shape = w.integers(size, f"{node.name}:size")
    return w.emit("Expand", [w.constant(one, f"{node.name}:one"), shape], f"{node.name}:scale")


@export_rule(LRN)
def lrn(node: LRN, w: OnnxWriter) -> OnnxValue:
    perm = channels_first(node.type.rank)
    return OnnxValue(w.emit(node.op, [w.real(node.x, perm)], node.name, **node.attributes()), perm)


@export_rule(Softmax, LogSoftmax)
def softmax(node: Softmax | LogSoftmax, w: OnnxWriter) -> OnnxValue:
    """Along what the last axis of the graph is in ONNX.

    onnxruntime has an integer Softmax that is up to a step off, away from ties: not to be used.
    """
    perm = w.order(node.x)
    axis = perm.index(node.type.rank - 1)
    result = w.emit(node.op, [w.real(node.x, perm)], f"{node.name}:real", axis=axis)
    if node.type.quant is not None:
        result = w.opaque(result, node.name)
    return w.rounded(node, result, perm)
