"""Export of products with weights in groups: onnxruntime's MatMulNBits, or DequantizeLinear of
blocks and a product where that has no such groups.

MatMulNBits rounds activations itself, if it may, for each block as ``QuantizeRows`` does.  So a row
is written as the floats it was made of.
"""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.export.writer import Value, Writer, export_rule, identity
from quantglow.graph.node import Constant, Node
from quantglow.ops import GroupedMatMul, QuantizeRows
from quantglow.ops.weight_groups import packed_codes, unpacked_codes

MICROSOFT = "com.microsoft"
INT8_LEVEL = 4
BLOCKED_OPSET = 21
"""DequantizeLinear has blocks from here on."""


@export_rule(QuantizeRows)
def quantize_rows(node: QuantizeRows, w: Writer) -> Value:
    """The rows before they are rounded."""
    return Value(w.real(node.x), identity(2))


@export_rule(GroupedMatMul)
def grouped_mat_mul(node: GroupedMatMul, w: Writer) -> Value:
    x, depth = w.stored(node.x), depth_of(node)
    write = n_bits if node.group & (node.group - 1) == 0 else blocked
    return Value(write(node, x, depth, w), identity(2))


def depth_of(node: GroupedMatMul) -> int:
    """K, without what fills the last group."""
    x = node.x.x if isinstance(node.x, QuantizeRows) else node.x
    return int(x.type.shape[1]) if x.type.dtype.is_float else node.depth


def n_bits(node: GroupedMatMul, x: str, depth: int, w: Writer) -> str:
    """MatMulNBits; its zero points are packed as its weights are."""
    w.domains[MICROSOFT] = 1
    inputs = [x, w.stored(node.w), w.stored(node.scales)]
    if node.zero_points is not None:
        packed = packed_points(array_of(node.zero_points), node.bits)
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


def packed_points(points: Array, bits: int) -> Array:
    """[N, G] codes packed along G; the last byte is filled with zeros."""
    missing = -points.shape[1] % (8 // bits)
    return packed_codes(np.pad(points, ((0, 0), (0, missing))), bits)


def blocked(node: GroupedMatMul, x: str, depth: int, w: Writer) -> str:
    """Weights [N, K] as uint8 behind DequantizeLinear."""
    w.require(BLOCKED_OPSET)
    codes = unpacked_codes(array_of(node.w), node.bits).reshape(len(array_of(node.w)), -1)
    points = np.full(node.scales.type.shape, node.midpoint, np.uint8)
    if node.zero_points is not None:
        points = array_of(node.zero_points)
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


def array_of(node: Node) -> Array:
    """The elements of a constant."""
    assert isinstance(node, Constant), "weights are constants"
    return node.value
