"""Export of element-wise operators, and of those that change the element type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from quantglow import ops
from quantglow.frontend.export.contraction import bounded, finished
from quantglow.frontend.export.writer import Perm, Value, Writer, export_rule, source
from quantglow.graph.node import Constant, Node
from quantglow.ops.arithmetic import dequantize
from quantglow.ops.quantization import Dequantize, Quantize, Rescale, Table
from quantglow.types import DType, ElementType, QuantParams, TensorType

SAME_NAME = (
    ops.Abs,
    ops.Ceil,
    ops.Elu,
    ops.Erf,
    ops.Exp,
    ops.Floor,
    ops.HardSigmoid,
    ops.HardSwish,
    ops.LeakyRelu,
    ops.Log,
    ops.Neg,
    ops.Reciprocal,
    ops.Relu,
    ops.Sigmoid,
    ops.Softplus,
    ops.Sqrt,
    ops.Tanh,
)
"""Unary operators with the name and the attributes of their ONNX operator."""

BINARY = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Max, ops.Min, ops.Pow)


@export_rule(*SAME_NAME)
def unary(node: ops.Unary, w: Writer) -> Value:
    perm = w.order(node.x)
    return Value(w.emit(node.op, [w.real(node.x, perm)], node.name, **node.attributes()), perm)


@export_rule(ops.Clip)
def clip(node: ops.Clip, w: Writer) -> Value:
    perm = w.order(node.x)
    return Value(bounded(node, w.real(node.x, perm), node.low, node.high, w), perm)


@export_rule(ops.Swish)
def swish(node: ops.Swish, w: Writer) -> Value:
    """``x * Sigmoid(alpha * x)``: the operator Swish is newer than what runtimes know."""
    perm = w.order(node.x)
    x = inner = w.real(node.x, perm)
    if node.alpha != 1:
        inner = w.emit("Mul", [x, scalar(node, "alpha", node.alpha, w)], f"{node.name}:scaled")
    gate = w.emit("Sigmoid", [inner], f"{node.name}:gate")
    return Value(w.emit("Mul", [x, gate], node.name), perm)


@export_rule(ops.Gelu)
def gelu(node: ops.Gelu, w: Writer) -> Value:
    """``0.5 * x * (1 + g)``, g = erf(x / sqrt(2)) or its tanh form."""
    perm = w.order(node.x)
    x = w.real(node.x, perm)
    gate = tanh_gate(node, x, w) if node.approximate else erf_gate(node, x, w)
    one = w.emit("Add", [gate, scalar(node, "one", 1.0, w)], f"{node.name}:gate")
    half = w.emit("Mul", [x, scalar(node, "half", 0.5, w)], f"{node.name}:half_x")
    return Value(w.emit("Mul", [half, one], node.name), perm)


def erf_gate(node: ops.Gelu, x: str, w: Writer) -> str:
    root = scalar(node, "root", math.sqrt(0.5), w)
    return w.emit("Erf", [w.emit("Mul", [x, root], f"{node.name}:inner")], f"{node.name}:erf")


def tanh_gate(node: ops.Gelu, x: str, w: Writer) -> str:
    """``tanh(sqrt(2/pi) * (x + 0.044715 * x^3))``"""
    name = f"{node.name}:inner"
    cube = w.emit("Mul", [w.emit("Mul", [x, x], name), x], name)
    scaled = w.emit("Mul", [cube, scalar(node, "cubic", 0.044715, w)], name)
    total = w.emit("Add", [x, scaled], name)
    inner = w.emit("Mul", [total, scalar(node, "root", math.sqrt(2 / math.pi), w)], name)
    return w.emit("Tanh", [inner], f"{node.name}:tanh")


def scalar(node: Node, label: str, value: float, w: Writer) -> str:
    return w.constant(np.array(value, np.float32), f"{node.name}:{label}")


@export_rule(*BINARY)
def binary(node: Any, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    return finished(node, w.emit(node.op, operands, f"{node.name}:real"), perm, w)


@export_rule(ops.Where)
def where(node: ops.Where, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    return w.rounded(node, w.emit(node.op, operands, f"{node.name}:real"), perm)


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
    zero_point = kind.params.zero_point - kind.dtype.limits[0]
    return ElementType(DType.U8, QuantParams.per_tensor(kind.params.scale, zero_point))
