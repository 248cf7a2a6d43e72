"""Export of element-wise operators, and of those that change the element type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from quantglow import ops
from quantglow.frontend.export.contraction import bounded, finished
from quantglow.frontend.export.expressions import Steps
from quantglow.frontend.export.writer import FIRST_OPSET, Perm, Value, Writer, export_rule, source
from quantglow.graph.node import Constant, Node
from quantglow.ops.arithmetic import dequantize
from quantglow.ops.quantization import Dequantize, Quantize, Rescale, Table
from quantglow.types import DType, ElementType, TensorType


@export_rule(ops.Unary)
def unary(node: ops.Unary, w: Writer) -> Value:
    """The ONNX operator, or the steps of its formula where the oldest runtimes lack it."""
    perm = w.order(node.x)
    x = w.real(node.x, perm)
    if node.since > FIRST_OPSET:
        return Value(Steps(node, w, [x]).value(node.formula().rounded()), perm)
    return Value(w.emit(node.op, [x], node.name, **node.attributes()), perm)


@export_rule(ops.Clip)
def clip(node: ops.Clip, w: Writer) -> Value:
    perm = w.order(node.x)
    return Value(bounded(node, w.real(node.x, perm), node.low, node.high, w), perm)


@export_rule(ops.Swish)
def swish(node: ops.Swish, w: Writer) -> Value:
    """``x * Sigmoid(alpha * x)``: runtimes know Sigmoid, and compute it in one step."""
    perm = w.order(node.x)
    x = inner = w.real(node.x, perm)
    if node.alpha != 1:
        inner = w.emit("Mul", [x, scalar(node, "alpha", node.alpha, w)], f"{node.name}:scaled")
    gate = w.emit("Sigmoid", [inner], f"{node.name}:gate")
    return Value(w.emit("Mul", [x, gate], node.name), perm)


def scalar(node: Node, label: str, value: float, w: Writer) -> str:
    return w.constant(np.array(value, np.float32), f"{node.name}:{label}")


@export_rule(ops.Binary)
def binary(node: ops.Binary, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    return finished(node, w.emit(node.op, operands, f"{node.name}:real"), perm, w)


@export_rule(ops.Where)
def where(node: ops.Where, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    dtype = DType.F32 if node.type.quant else node.type.dtype
    return w.rounded(node, chosen(operands, dtype, f"{node.name}:real", w), perm)


def chosen(operands: list[str], dtype: DType, hint: str, w: Writer) -> str:
    """The choice in types that onnxruntime's Where has: conditions by And and Or, small integers as
    larger ones."""
    if dtype in (DType.F32, DType.I32, DType.I64, DType.U8):
        return w.emit("Where", operands, hint)
    condition, x, y = operands
    if dtype is DType.BOOL:
        other = w.emit("Not", [condition], hint)
        parts = [w.emit("And", pair, hint) for pair in ([condition, x], [other, y])]
        return w.emit("Or", parts, hint)
    wide = [w.emit("Cast", [value], hint, to=onnx.TensorProto.INT32) for value in (x, y)]
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    return w.emit("Cast", [w.emit("Where", [condition, *wide], hint)], hint, to=to)


@export_rule(ops.PRelu)
def prelu(node: ops.PRelu, w: Writer) -> Value:
    perm = w.order(node.x)
    operands = [w.real(node.x, perm), w.spread(node.slope, node.type.rank, perm)]
    return w.rounded(node, w.emit("PRelu", operands, f"{node.name}:real"), perm)


@export_rule(Quantize, Rescale)
def quantize(node: Quantize | Rescale, w: Writer) -> Value:
    """QuantizeLinear; behind DequantizeLinear where x is quantized already.

    onnxruntime merges two roundings in a row into one, which gives other integers.
    """
    perm = w.order(node.x)
    x = w.real(node.x, perm)
    if isinstance(node, Rescale) or isinstance(source(node.x, perm)[0], Dequantize):
        x = w.opaque(x, node.name)
    return w.rounded(node, x, perm)


@export_rule(Table)
def table(node: Table, w: Writer) -> Value:
    """Gather from the real results of all codes (integers, if they stand for no real numbers), at
    the codes of x counted from 0.

    Exact, and a float function like others to runtimes: integers x gets a copy of its own.
    """
    assert isinstance(node.table, Constant), "tables are Constants"
    perm = w.order(node.x)
    index = table_index(node, w.real(node.x, perm), perm, w)
    results = node.table.value
    if node.type.quant is not None:
        results = dequantize(results, node.type.quant)
    entries = w.constant(results, node.table.name)
    return w.rounded(node, w.emit("Gather", [entries, index], f"{node.name}:real"), perm)


def table_index(node: Table, x: str, perm: Perm, w: Writer) -> str:
    """The codes of x, float32 or plain integers, as int32 counted from 0."""
    kind, name = node.x.type, f"{node.name}:index"
    is_shifted = kind.quant is not None and kind.dtype is not DType.I16
    element = as_unsigned(kind) if is_shifted else kind.element
    codes = w.quantized(x, element, perm, f"{node.name}:codes")
    index = w.emit("Cast", [codes], name, to=onnx.TensorProto.INT32)
    if is_shifted or kind.dtype is DType.U8:
        return index
    first = w.constant(np.array(-kind.dtype.limits[0], np.int32), f"{node.name}:first")
    return w.emit("Add", [index, first], name)


def as_unsigned(kind: TensorType) -> ElementType:
    """The uint8 type whose codes are those of an 8-bit type, counted from 0."""
    points = tuple(point - kind.dtype.limits[0] for point in kind.params.zero_points)
    return ElementType(DType.U8, replace(kind.params, zero_points=points))
