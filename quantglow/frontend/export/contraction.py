"""Export of convolutions and matrix products: dequantize, multiply, activate, bound, quantize.

Nothing rounds in between: the residual of a Conv is added to the unrounded sum, and an activation
is a float operator of that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.frontend.export.writer import (
    Perm,
    Value,
    Writer,
    channels_first,
    export_rule,
    identity,
)
from quantglow.graph.node import Node
from quantglow.ops import Conv, ConvTranspose, Gemm, MatMul
from quantglow.ops.arithmetic import integer_bounds, is_integer, multiplier
from quantglow.ops.contraction import Contraction

IMAGE = channels_first(4)


@export_rule(Conv)
def conv(node: Conv, w: Writer) -> Value:
    """Weights [KH, KW, C/group, O] become [O, C/group, KH, KW]."""
    inputs = [w.real(node.x, IMAGE), w.real(node.w, (3, 2, 0, 1)), *bias(node, w)]
    sums = w.emit(
        "Conv",
        inputs,
        f"{node.name}:sum",
        kernel_shape=node.w.type.shape[:2],
        strides=node.strides,
        pads=node.pads,
        dilations=node.dilations,
        group=node.group,
    )
    if node.residual is not None:
        operands = [sums, w.real(node.residual, IMAGE)]
        sums = w.emit("Add", operands, f"{node.name}:with_residual")
    return finished(node, activated(node, sums, w), IMAGE, w)


@export_rule(ConvTranspose)
def conv_transpose(node: ConvTranspose, w: Writer) -> Value:
    """Weights [KH, KW, C/group, O] become [C, O/group, KH, KW]."""
    sums = w.emit(
        "ConvTranspose",
        [w.real(node.x, IMAGE), transposed_weights(node, w), *bias(node, w)],
        f"{node.name}:sum",
        kernel_shape=node.w.type.shape[:2],
        strides=node.strides,
        pads=node.pads,
        dilations=node.dilations,
        output_padding=node.output_padding,
        group=node.group,
    )
    if node.out is not None and node.group > 1:
        # onnxruntime would quantize float weights in front of a QuantizeLinear once more.
        sums = w.opaque(sums, node.name)
    return finished(node, activated(node, sums, w), IMAGE, w)


def transposed_weights(node: ConvTranspose, w: Writer) -> str:
    """[C, O/group, KH, KW].  No axis of grouped weights is the output channel: they are
    dequantized as [O, C/group, KH, KW] and rearranged then."""
    if node.group == 1:
        return w.real(node.w, (2, 3, 0, 1))
    kh, kw, c_group, o = node.w.type.shape
    o_group, name = o // node.group, node.w.name
    split = (node.group, o_group, c_group, kh, kw)
    groups = w.reshaped(w.real(node.w, (3, 2, 0, 1)), split, name)
    stacked = w.emit("Transpose", [groups], f"{name}:t", perm=(0, 2, 1, 3, 4))
    return w.reshaped(stacked, (node.group * c_group, o_group, kh, kw), name)


@export_rule(Gemm)
def gemm(node: Gemm, w: Writer) -> Value:
    inputs = [w.real(node.x), w.real(node.w), *bias(node, w)]
    sums = w.emit("Gemm", inputs, f"{node.name}:sum")
    return finished(node, activated(node, sums, w), identity(2), w)


@export_rule(MatMul)
def mat_mul(node: MatMul, w: Writer) -> Value:
    sums = w.emit("MatMul", [w.real(node.x), w.real(node.y)], f"{node.name}:sum")
    return w.rounded(node, sums, identity(node.type.rank))


def bias(node: Contraction, w: Writer) -> list[str]:
    """The bias operand, if there is one; int32 steps of input scale times weight scale."""
    if node.b is None:
        return []
    if not is_integer(node.x.type):
        return [w.real(node.b)]
    weights = node.w.type.params
    scales = multiplier(weights.scales, node.x.type.params.scale)
    zero_points = np.zeros(scales.shape, np.int32)
    per_channel = weights.axis is not None
    shape = (-1,) if per_channel else ()
    inputs = [
        w.stored(node.b),
        w.constant(scales.reshape(shape), f"{node.b.name}:scale"),
        w.constant(zero_points.reshape(shape), f"{node.b.name}:zero_point"),
    ]
    axis = {"axis": 0} if per_channel else {}
    return [w.emit("DequantizeLinear", inputs, f"{node.b.name}:dq", **axis)]


def activated(node: Contraction, name: str, w: Writer) -> str:
    """The activation of the float32 sum: its operator, Mul and Add."""
    found = node.activation
    if found is None:
        return name
    name = w.emit(found.op, [name], f"{node.name}:activated", **found.attributes())
    for op, value, neutral in (("Mul", found.factor, 1.0), ("Add", found.offset, 0.0)):
        if value != neutral:
            label = "factor" if op == "Mul" else "offset"
            constant = w.constant(np.array(value, np.float32), f"{node.name}:{label}")
            name = w.emit(op, [name, constant], f"{node.name}:{label}_applied")
    return name


def finished(node: Any, name: str, perm: Perm, w: Writer) -> Value:
    """The float32 result between its bounds, rounded if the node is quantized.

    Bounds at which the rounding saturates anyway are left out: runtimes then see the pattern
    DequantizeLinear, operator, QuantizeLinear.
    """
    low, high = node.low, node.high
    if node.out is not None:
        lowest, highest = node.out.dtype.limits
        floor, ceiling = integer_bounds(node.out, low, high)
        low = -math.inf if floor == lowest else low
        high = math.inf if ceiling == highest else high
    return w.rounded(node, bounded(node, name, low, high, w), perm)


def bounded(node: Node, name: str, low: float, high: float, w: Writer) -> str:
    """``min(max(x, low), high)``: Relu, Clip, or nothing."""
    hint = f"{node.name}:bounded"
    if (low, high) == (0.0, math.inf):
        return w.emit("Relu", [name], hint)
    if (low, high) == (-math.inf, math.inf):
        return name
    # Both bounds: in place of one left out runtimes take the largest number that is no infinity.
    inputs = [name]
    for bound, label in ((low, "low"), (high, "high")):
        inputs.append(w.constant(np.array(bound, np.float32), f"{node.name}:{label}"))
    return w.emit("Clip", inputs, hint)
