"""Export of element-wise operators and of expressions, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from quantglow.export.onnx.contraction import clamp, finish
from quantglow.export.onnx.writer import (
    FIRST_OPSET,
    OnnxValue,
    OnnxWriter,
    Perm,
    export_rule,
    identity,
    of_rank,
    permute,
    source,
)
from quantglow.ir import ops
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Elementwise, RowMap
from quantglow.ir.ops.arithmetic import dequantize
from quantglow.ir.ops.expression import Expr, call, const, parse_expression, polynomial
from quantglow.ir.ops.functions import SELECT, dtype_kind
from quantglow.ir.ops.quantization import Dequantize, Quantize, Rescale, Table
from quantglow.ir.symbolic.size import integer, is_free, likely, surely_equal
from quantglow.ir.types import DType, ElementType, TensorType

STEPS = {
    "abs": "Abs", "add": "Add", "and": "And", "atan": "Atan", "ceil": "Ceil", "cos": "Cos",
    "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "expneg": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "iadd": "Add", "iand": "BitwiseAnd", "idiv": "Div",
    "imax": "Max", "imin": "Min", "imod": "Mod", "imul": "Mul", "ior": "BitwiseOr", "isub": "Sub",
    "ixor": "BitwiseXor", "le": "LessOrEqual", "log": "Log", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not", "or": "Or", "pow": "Pow",
    "rint": "Round", "sin": "Sin", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh", "xor": "Xor",
    SELECT: "Where",
}  # fmt: skip
"""The ONNX operator of each function that has one without attributes."""

COMMUTATIVE = ("add", "mul")
"""Written with a constant operand second, where fusions of runtimes look for it."""

ATTRIBUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "fmod": ("Mod", {"fmod": 1}),
    "irem": ("Mod", {"fmod": 1}),
    "float": ("Cast", {"to": onnx.TensorProto.FLOAT}),
    "int": ("Cast", {"to": onnx.TensorProto.INT32}),
    "int32": ("Cast", {"to": onnx.TensorProto.INT32}),
    "int64": ("Cast", {"to": onnx.TensorProto.INT64}),
}
"""Functions that ONNX has with attributes."""

DIVISIONS = ("idiv", "imod", "irem")
"""By 0 they give 0, where runtimes end the process."""

SHIFTS = {"ishl": "LEFT", "ishr": "RIGHT"}
"""ONNX shifts unsigned integers, by less than their width."""

REDUCTIONS = {"rowsum": "ReduceSum", "rowmax": "ReduceMax"}
"""Functions of whole rows."""

_LITERALS = {"f": np.float32, "i": np.int32, "l": np.int64}


def expm1(x: Expr) -> Expr:
    """``exp(x) - 1``, by its series near 0."""
    series = x * polynomial(x, *(1 / math.factorial(i) for i in range(1, 8)))
    return call(SELECT, call("lt", call("abs", x), const(0.25)), series, call("exp", x) - 1.0)


def log1p(x: Expr) -> Expr:
    """``log(1 + x)``; what rounding adds to 1 + x is taken off by the quotient, which infinity has
    not."""
    total = const(1) + x
    value = call("log", total) * (x / (total - 1.0))
    near = call("eq", total, const(1))
    return call(SELECT, near, x, call(SELECT, call("lt", x, const(math.inf)), value, x))


def ndtr(x: Expr) -> Expr:
    """``(1 + erf(x / sqrt(2))) / 2``"""
    return (const(1) + call("erf", x * math.sqrt(0.5))) * 0.5


def _tanh_gate(x: Expr) -> Expr:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``"""
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return (const(1) + call("tanh", inner)) * 0.5


def _number_of_two(function: str) -> Callable[[Expr, Expr], Expr]:
    """The other operand where one is NaN; ONNX's Min and Max give NaN."""
    form = f"select(eq($0,$0),select(eq($1,$1),{function}($0,$1),$0),$1)"
    return lambda x, y: parse_expression(form).substitute((x, y))


FORMULAS: dict[str, Callable[..., Expr]] = {
    "expm1": expm1,
    "log1p": log1p,
    "ndtr": ndtr,
    "tanhgate": _tanh_gate,
    "fmax": _number_of_two("max"),
    "fmin": _number_of_two("min"),
}
"""Functions that ONNX has not, by others."""


@export_rule(Elementwise)
def elementwise(node: Elementwise, w: OnnxWriter) -> OnnxValue:
    """The expression reads codes of quantized operands, and gives those of its result."""
    rank = node.type.rank
    if any(operand.type.quant for operand in node.args):
        perm, operands = identity(rank), [w.stored(operand) for operand in node.args]
    else:
        perm = w.common_order(node.args, rank)
        operands = [w.spread(operand, rank, perm) for operand in node.args]
    written = ExpressionWriter(node, w, operands).stored(node.expression, node.out.dtype)
    if not _is_full(node):
        shape = w.integers(permute(node.type.shape, perm), f"{node.name}:shape")
        written = w.emit("Expand", [written, shape], f"{node.name}:full")
    return OnnxValue(written, perm)


def _is_full(node: Elementwise) -> bool:
    """Whether the operands that the expression reads broadcast to the shape of the node."""
    read = {int(part.value) for part in node.expression.parts() if part.op == "arg"}
    shapes = [of_rank(node.args[i].type.shape, node.type.rank) for i in read]
    ones = of_rank((), node.type.rank)
    return all(
        any(surely_equal(shape[axis : axis + 1], (size,)) for shape in [*shapes, ones])
        for axis, size in enumerate(node.type.shape)
    )


@export_rule(RowMap)
def rows(node: RowMap, w: OnnxWriter) -> OnnxValue:
    """Every operand is a whole row: of one that is broadcast, a sum would be another."""
    rank = node.type.rank
    perm = w.common_order(node.args, rank)
    shape = w.integers(permute(node.type.shape, perm), f"{node.name}:shape")
    operands = [
        w.emit("Expand", [w.spread(operand, rank, perm), shape], f"{node.name}:rows")
        for operand in node.args
    ]
    steps = ExpressionWriter(node, w, operands, row_axis=perm.index(rank - 1))
    written = steps.stored(node.expression, node.out.dtype)
    if not _varies(node.expression):
        written = w.emit("Expand", [written, shape], f"{node.name}:full")
    return OnnxValue(written, perm)


def _varies(expr: Expr) -> bool:
    """Whether the elements of a row differ."""
    return expr.op not in REDUCTIONS and (expr.op == "arg" or any(map(_varies, expr.args)))


@dataclass
class ExpressionWriter:
    """Writes each step of an expression of a node's operands once."""

    node: Node
    writer: OnnxWriter
    operands: list[str]
    row_axis: int = 0
    done: dict[Expr, str] = field(default_factory=dict)

    def stored(self, expr: Expr, dtype: DType) -> str:
        """The value of the expression, as elements of the type."""
        value = self.value(expr)
        return self._cast(value, dtype) if _is_widened(dtype) else value

    def value(self, expr: Expr) -> str:
        """The value of the expression in its own kind."""
        if expr not in self.done:
            self.done[expr] = self._write(expr)
        return self.done[expr]

    def _write(self, expr: Expr) -> str:
        name = self.node.name
        if expr.op == "arg":
            operand, dtype = (
                self.operands[int(expr.value)],
                self.node.operands[int(expr.value)].type.dtype,
            )
            return self._cast(operand, DType.I32) if _is_widened(dtype) else operand
        if is_free(expr.value):
            return self._size(expr)
        if expr.op in _LITERALS:
            return self.writer.constant(
                np.array(expr.value, _LITERALS[expr.op]), f"{name}:constant"
            )
        if expr.op in REDUCTIONS:
            axes = self.writer.integers([self.row_axis], f"{name}:axes")
            return self.writer.emit(
                REDUCTIONS[expr.op], [self.value(expr.args[0]), axes], f"{name}:{expr.op}"
            )
        if expr.op in FORMULAS:
            return self.value(FORMULAS[expr.op](*expr.args).rounded())
        if expr.op in SHIFTS:
            return self._shift(expr)
        op_type, attributes = ATTRIBUTES.get(expr.op) or (STEPS[expr.op], {})
        args = expr.args
        if expr.op in COMMUTATIVE:
            args = tuple(sorted(args, key=lambda a: a.op in _LITERALS))
        inputs = [self.value(a) for a in args]
        if expr.op in DIVISIONS and not (args[1].op in _LITERALS and likely(args[1].value) > 0):
            return self._divide(op_type, expr, attributes)
        return self.writer.emit(op_type, inputs, f"{name}:{expr.op}", **attributes)

    def _divide(self, op_type: str, expr: Expr, attributes: dict[str, Any]) -> str:
        """A quotient or remainder, 0 where the divisor is.  A quotient by -1 is a difference:
        that of the smallest integer would end a process, too."""
        x, y = map(self.value, expr.args)
        zero, one = self._number(0, expr), self._number(1, expr)
        is_zero = self._emit("Equal", [y, zero], expr)
        is_mirror = self._emit("Equal", [y, self._number(-1, expr)], expr)
        divisor = self._emit("Where", [self._emit("Or", [is_zero, is_mirror], expr), one, y], expr)
        quotient = self._emit(op_type, [x, divisor], expr, **attributes)
        if op_type == "Div":
            mirrored = self._emit("Sub", [zero, x], expr)
            quotient = self._emit("Where", [is_mirror, mirrored, quotient], expr)
        return self._emit("Where", [is_zero, zero, quotient], expr)

    def _shift(self, expr: Expr) -> str:
        """A shift of integers with a sign: to the right of its distance from 0 or -1; amounts
        outside of the width leave nothing but the sign."""
        x, y = map(self.value, expr.args)
        dtype, zero = self._dtype(expr), self._number(0, expr)
        width = self._number(8 * dtype.numpy.itemsize, expr)
        comparisons = [
            self._emit(op, [y, end], expr) for op, end in (("Less", width), ("Less", zero))
        ]
        is_inside = self._emit(
            "And", [comparisons[0], self._emit("Not", [comparisons[1]], expr)], expr
        )
        amount = self._unsigned(self._emit("Where", [is_inside, y, zero], expr), expr)
        is_negative = self._emit("Less", [x, zero], expr)
        if expr.op == "ishr":
            x = self._mirror(x, is_negative, expr)
        shifted = self._emit(
            "BitShift", [self._unsigned(x, expr), amount], expr, direction=SHIFTS[expr.op]
        )
        result = self._cast(shifted, dtype)
        result = self._emit("Where", [is_inside, result, zero], expr)
        return self._mirror(result, is_negative, expr) if expr.op == "ishr" else result

    def _mirror(self, x: str, is_negative: str, expr: Expr) -> str:
        """-1 - x where a number was negative."""
        other = self._emit("Sub", [self._number(-1, expr), x], expr)
        return self._emit("Where", [is_negative, other, x], expr)

    def _unsigned(self, x: str, expr: Expr) -> str:
        return self._emit("Cast", [x], expr, to=onnx.TensorProto.UINT64)

    def _dtype(self, expr: Expr) -> DType:
        """The type of an integer expression."""
        kinds = tuple(dtype_kind(operand.type.dtype) for operand in self.node.operands)
        return DType.I64 if expr.kind(kinds) == "l" else DType.I32

    def _number(self, value: int, expr: Expr) -> str:
        array = np.array(value, self._dtype(expr).numpy)
        return self.writer.constant(array, f"{self.node.name}:{value}")

    def _emit(self, op_type: str, inputs: list[str], expr: Expr, **attributes: Any) -> str:
        return self.writer.emit(op_type, inputs, f"{self.node.name}:{expr.op}", **attributes)

    def _size(self, expr: Expr) -> str:
        """A literal that depends on free dimensions."""
        shape = self.writer.integers([integer(expr.value)], f"{self.node.name}:size")
        scalar = self.writer.reshaped(shape, (), self.node.name)
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(_LITERALS[expr.op]))
        return self.writer.emit("Cast", [scalar], f"{self.node.name}:size", to=to)

    def _cast(self, value: str, dtype: DType) -> str:
        to = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
        return self.writer.emit("Cast", [value], f"{self.node.name}:{dtype}", to=to)


def _is_widened(dtype: DType) -> bool:
    """Whether elements are widened to int32 before they are computed with."""
    return dtype_kind(dtype) == "i" and dtype is not DType.I32


@export_rule(ops.Unary)
def unary(node: ops.Unary, w: OnnxWriter) -> OnnxValue:
    """The ONNX operator, or the steps of its formula where the oldest runtimes lack it."""
    perm = w.order(node.x)
    x = w.real(node.x, perm)
    if node.since > FIRST_OPSET:
        return OnnxValue(ExpressionWriter(node, w, [x]).value(node.formula().rounded()), perm)
    return OnnxValue(w.emit(node.op, [x], node.name, **node.attributes()), perm)


@export_rule(ops.Clip)
def clip(node: ops.Clip, w: OnnxWriter) -> OnnxValue:
    perm = w.order(node.x)
    return OnnxValue(clamp(node, w.real(node.x, perm), node.low, node.high, w), perm)


@export_rule(ops.Swish)
def swish(node: ops.Swish, w: OnnxWriter) -> OnnxValue:
    """``x * Sigmoid(alpha * x)``: runtimes know Sigmoid, and compute it in one step."""
    perm = w.order(node.x)
    x = inner = w.real(node.x, perm)
    if node.alpha != 1:
        inner = w.emit("Mul", [x, _scalar(node, "alpha", node.alpha, w)], f"{node.name}:scaled")
    gate = w.emit("Sigmoid", [inner], f"{node.name}:gate")
    return OnnxValue(w.emit("Mul", [x, gate], node.name), perm)


def _scalar(node: Node, label: str, value: float, w: OnnxWriter) -> str:
    return w.constant(np.array(value, np.float32), f"{node.name}:{label}")


@export_rule(ops.Binary)
def binary(node: ops.Binary, w: OnnxWriter) -> OnnxValue:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    return finish(node, w.emit(node.op, operands, f"{node.name}:real"), perm, w)


@export_rule(ops.Where)
def where(node: ops.Where, w: OnnxWriter) -> OnnxValue:
    rank = node.type.rank
    perm = w.common_order(node.operands, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.operands]
    dtype = DType.F32 if node.type.quant else node.type.dtype
    return w.rounded(node, _choose(operands, dtype, f"{node.name}:real", w), perm)


def _choose(operands: list[str], dtype: DType, hint: str, w: OnnxWriter) -> str:
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
def prelu(node: ops.PRelu, w: OnnxWriter) -> OnnxValue:
    perm = w.order(node.x)
    operands = [w.real(node.x, perm), w.spread(node.slope, node.type.rank, perm)]
    return w.rounded(node, w.emit("PRelu", operands, f"{node.name}:real"), perm)


@export_rule(Quantize, Rescale)
def quantize(node: Quantize | Rescale, w: OnnxWriter) -> OnnxValue:
    """QuantizeLinear; behind DequantizeLinear where x is quantized already.

    onnxruntime merges two roundings in a row into one, which gives other integers.
    """
    perm = w.order(node.x)
    x = w.real(node.x, perm)
    if isinstance(node, Rescale) or isinstance(source(node.x, perm)[0], Dequantize):
        x = w.opaque(x, node.name)
    return w.rounded(node, x, perm)


@export_rule(Table)
def table(node: Table, w: OnnxWriter) -> OnnxValue:
    """Gather from the real results of all codes (integers, if they stand for no real numbers), at
    the codes of x counted from 0.

    Exact, and a float function like others to runtimes: integers x gets a copy of its own.
    """
    assert isinstance(node.table, Constant), "tables are Constants"
    perm = w.order(node.x)
    index = _table_index(node, w.real(node.x, perm), perm, w)
    results = node.table.value
    if node.type.quant is not None:
        results = dequantize(results, node.type.quant)
    entries = w.constant(results, node.table.name)
    return w.rounded(node, w.emit("Gather", [entries, index], f"{node.name}:real"), perm)


def _table_index(node: Table, x: str, perm: Perm, w: OnnxWriter) -> str:
    """The codes of x, float32 or plain integers, as int32 counted from 0."""
    kind, name = node.x.type, f"{node.name}:index"
    is_shifted = kind.quant is not None and kind.dtype is not DType.I16
    element = _as_unsigned(kind) if is_shifted else kind.element
    codes = w.quantized(x, element, perm, f"{node.name}:codes")
    index = w.emit("Cast", [codes], name, to=onnx.TensorProto.INT32)
    if is_shifted or kind.dtype is DType.U8:
        return index
    first = w.constant(np.array(-kind.dtype.limits[0], np.int32), f"{node.name}:first")
    return w.emit("Add", [index, first], name)


def _as_unsigned(kind: TensorType) -> ElementType:
    """The uint8 type whose codes are those of an 8-bit type, counted from 0."""
    points = tuple(point - kind.dtype.limits[0] for point in kind.params.zero_points)
    return ElementType(DType.U8, replace(kind.params, zero_points=points))
