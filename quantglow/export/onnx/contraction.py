"""Export of convolutions and matrix products, also with weights in groups.

A product is written as dequantize, multiply, activate, bound, quantize.  Nothing rounds in between:
the residual of a Conv is added to the unrounded sum, and an activation is a float operator of that.

Weights in groups become onnxruntime's MatMulNBits, or DequantizeLinear of blocks and a product
where that has no such groups.  MatMulNBits rounds activations itself, if it may, for each block as
``QuantizeRows`` does.  So a row is written as the floats it was made of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.export.onnx.writer import (
    OnnxValue,
    OnnxWriter,
    Perm,
    channels_first,
    export_rule,
    identity,
)
from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv, ConvTranspose, Gemm, GroupedMatMul, MatMul, QuantizeRows
from quantglow.ir.ops.arithmetic import integer_bounds, is_integer, multiplier
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.groupwise import pack_codes, unpack_codes
from quantglow.support.arrays import Array

IMAGE = channels_first(4)

INT8_LEVEL = 4
BLOCKED_OPSET = 21
"""DequantizeLinear has blocks from here on."""


@export_rule(Conv)
def conv(node: Conv, w: OnnxWriter) -> OnnxValue:
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
    return finish(node, _activate(node, sums, w), IMAGE, w)


@export_rule(ConvTranspose)
def conv_transpose(node: ConvTranspose, w: OnnxWriter) -> OnnxValue:
    """Weights [KH, KW, C/group, O] become [C, O/group, KH, KW]."""
    sums = w.emit(
        "ConvTranspose",
        [w.real(node.x, IMAGE), _transpose_weights(node, w), *bias(node, w)],
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
    return finish(node, _activate(node, sums, w), IMAGE, w)


def _transpose_weights(node: ConvTranspose, w: OnnxWriter) -> str:
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
def gemm(node: Gemm, w: OnnxWriter) -> OnnxValue:
    inputs = [w.real(node.x), w.real(node.w), *bias(node, w)]
    sums = w.emit("Gemm", inputs, f"{node.name}:sum")
    return finish(node, _activate(node, sums, w), identity(2), w)


@export_rule(MatMul)
def mat_mul(node: MatMul, w: OnnxWriter) -> OnnxValue:
    sums = w.emit("MatMul", [w.real(node.x), w.real(node.y)], f"{node.name}:sum")
    return w.rounded(node, sums, identity(node.type.rank))


def bias(node: Contraction, w: OnnxWriter) -> list[str]:
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


def _activate(node: Contraction, name: str, w: OnnxWriter) -> str:
    """The activation of the float32 sum: its operator, Mul and Add."""
    activation = node.activation
    if activation is None:
        return name
    name = w.emit(activation.op, [name], f"{node.name}:activated", **activation.attributes())
    for op, value, neutral in (("Mul", activation.factor, 1.0), ("Add", activation.offset, 0.0)):
        if value != neutral:
            label = "factor" if op == "Mul" else "offset"
            constant = w.constant(np.array(value, np.float32), f"{node.name}:{label}")
            name = w.emit(op, [name, constant], f"{node.name}:{label}_applied")
    return name


def finish(node: Any, name: str, perm: Perm, w: OnnxWriter) -> OnnxValue:
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
    return w.rounded(node, clamp(node, name, low, high, w), perm)


def clamp(node: Node, name: str, low: float, high: float, w: OnnxWriter) -> str:
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


@export_rule(QuantizeRows)
def quantize_rows(node: QuantizeRows, w: OnnxWriter) -> OnnxValue:
    """The rows before they are rounded."""
    return OnnxValue(w.real(node.x), identity(2))


@export_rule(GroupedMatMul)
def grouped_mat_mul(node: GroupedMatMul, w: OnnxWriter) -> OnnxValue:
    x, depth = w.stored(node.x), _product_depth(node)
    write = _n_bits if node.group & (node.group - 1) == 0 else block
    return OnnxValue(write(node, x, depth, w), identity(2))


def _product_depth(node: GroupedMatMul) -> int:
    """K, without what fills the last group."""
    x = node.x.x if isinstance(node.x, QuantizeRows) else node.x
    return int(x.type.shape[1]) if x.type.dtype.is_float else node.depth


def _n_bits(node: GroupedMatMul, x: str, depth: int, w: OnnxWriter) -> str:
    """MatMulNBits; its zero points are packed as its weights are."""
    w.domains[MICROSOFT] = 1
    inputs = [x, w.stored(node.w), w.stored(node.scales)]
    if node.zero_points is not None:
        packed = _pack_points(_constant_array(node.zero_points), node.bits)
        inputs.append(w.constant(packed, node.zero_points.name))
    if node.b is not None:
        inputs += [""] * (5 - len(inputs))
        inputs.append(w.stored(node.b))
    return w.emit(
        "MatMulNBits",
        inputs,
        f"{node.name}:product",
        domain=MICROSOFT,
        K=depth,
        N=node.type.shape[1],
        bits=node.bits,
        block_size=node.group,
        accuracy_level=INT8_LEVEL if node.is_dynamic else 0,
    )


def _pack_points(points: Array, bits: int) -> Array:
    """[N, G] codes packed along G; the last byte is filled with zeros."""
    missing = -points.shape[1] % (8 // bits)
    return pack_codes(np.pad(points, ((0, 0), (0, missing))), bits)


def block(node: GroupedMatMul, x: str, depth: int, w: OnnxWriter) -> str:
    """Weights [N, K] as uint8 behind DequantizeLinear."""
    w.require(BLOCKED_OPSET)
    codes = unpack_codes(_constant_array(node.w), node.bits).reshape(
        len(_constant_array(node.w)), -1
    )
    points = np.full(node.scales.type.shape, node.midpoint, np.uint8)
    if node.zero_points is not None:
        points = _constant_array(node.zero_points)
    weights = w.emit(
        "DequantizeLinear",
        [
            w.constant(np.ascontiguousarray(codes[:, :depth]), node.w.name),
            w.stored(node.scales),
            w.constant(points, f"{node.name}:zero_points"),
        ],
        f"{node.w.name}:dq",
        axis=1,
        block_size=node.group,
    )
    bias = [] if node.b is None else [w.stored(node.b)]
    return w.emit("Gemm", [x, weights, *bias], f"{node.name}:product", transB=1)


def _constant_array(node: Node) -> Array:
    """The elements of a constant."""
    assert isinstance(node, Constant), "weights are constants"
    return node.value
