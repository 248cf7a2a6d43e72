"""Export of expressions: each step is an ONNX operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from quantglow.frontend.export.writer import (
    Value,
    Writer,
    export_rule,
    identity,
    of_rank,
    permuted,
)
from quantglow.graph.node import Node
from quantglow.ops import Elementwise, RowMap
from quantglow.ops.expression import Expr, call, const, parse_expression, polynomial
from quantglow.ops.functions import SELECT, kind_of
from quantglow.symbolic.shapes import integer, surely_equal
from quantglow.symbolic.size import is_free, likely
from quantglow.types import DType

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


def tanh_gate(x: Expr) -> Expr:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``"""
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return (const(1) + call("tanh", inner)) * 0.5


def number_of_two(function: str) -> Callable[[Expr, Expr], Expr]:
    """The other operand where one is NaN; ONNX's Min and Max give NaN."""
    form = f"select(eq($0,$0),select(eq($1,$1),{function}($0,$1),$0),$1)"
    return lambda x, y: parse_expression(form).substitute((x, y))


FORMULAS: dict[str, Callable[..., Expr]] = {
    "expm1": expm1,
    "log1p": log1p,
    "ndtr": ndtr,
    "tanhgate": tanh_gate,
    "fmax": number_of_two("max"),
    "fmin": number_of_two("min"),
}
"""Functions that ONNX has not, by others."""

REDUCTIONS = {"rowsum": "ReduceSum", "rowmax": "ReduceMax"}
"""Functions of whole rows."""

_LITERALS = {"f": np.float32, "i": np.int32, "l": np.int64}


@export_rule(Elementwise)
def elementwise(node: Elementwise, w: Writer) -> Value:
    """The expression reads codes of quantized operands, and gives those of its result."""
    rank = node.type.rank
    if any(operand.type.quant for operand in node.args):
        perm, operands = identity(rank), [w.stored(operand) for operand in node.args]
    else:
        perm = w.common_order(node.args, rank)
        operands = [w.spread(operand, rank, perm) for operand in node.args]
    written = Steps(node, w, operands).stored(node.expression, node.out.dtype)
    if not is_full(node):
        shape = w.integers(permuted(node.type.shape, perm), f"{node.name}:shape")
        written = w.emit("Expand", [written, shape], f"{node.name}:full")
    return Value(written, perm)


def is_full(node: Elementwise) -> bool:
    """Whether the operands that the expression reads broadcast to the shape of the node."""
    read = {int(part.value) for part in node.expression.parts() if part.op == "arg"}
    shapes = [of_rank(node.args[i].type.shape, node.type.rank) for i in read]
    ones = of_rank((), node.type.rank)
    return all(
        any(surely_equal(shape[axis : axis + 1], (size,)) for shape in [*shapes, ones])
        for axis, size in enumerate(node.type.shape)
    )


@export_rule(RowMap)
def rows(node: RowMap, w: Writer) -> Value:
    """Every operand is a whole row: of one that is broadcast, a sum would be another."""
    rank = node.type.rank
    perm = w.common_order(node.args, rank)
    shape = w.integers(permuted(node.type.shape, perm), f"{node.name}:shape")
    operands = [
        w.emit("Expand", [w.spread(operand, rank, perm), shape], f"{node.name}:rows")
        for operand in node.args
    ]
    steps = Steps(node, w, operands, row_axis=perm.index(rank - 1))
    written = steps.stored(node.expression, node.out.dtype)
    if not varies(node.expression):
        written = w.emit("Expand", [written, shape], f"{node.name}:full")
    return Value(written, perm)


def varies(expr: Expr) -> bool:
    """Whether the elements of a row differ."""
    return expr.op not in REDUCTIONS and (expr.op == "arg" or any(map(varies, expr.args)))


@dataclass
class Steps:
    """Writes each step of an expression of a node's operands once."""

    node: Node
    writer: Writer
    operands: list[str]
    row_axis: int = 0
    done: dict[Expr, str] = field(default_factory=dict)

    def stored(self, expr: Expr, dtype: DType) -> str:
        """The value of the expression, as elements of the type."""
        value = self.value(expr)
        return self._cast(value, dtype) if is_widened(dtype) else value

    def value(self, expr: Expr) -> str:
        """The value of the expression in its own kind."""
        if expr not in self.done:
            self.done[expr] = self._written(expr)
        return self.done[expr]

    def _written(self, expr: Expr) -> str:
        name = self.node.name
        if expr.op == "arg":
            operand, dtype = (
                self.operands[int(expr.value)],
                self.node.operands[int(expr.value)].type.dtype,
            )
            return self._cast(operand, DType.I32) if is_widened(dtype) else operand
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
            return self._shifted(expr)
        op_type, attributes = ATTRIBUTES.get(expr.op) or (STEPS[expr.op], {})
        args = expr.args
        if expr.op in COMMUTATIVE:
            args = tuple(sorted(args, key=lambda a: a.op in _LITERALS))
        inputs = [self.value(a) for a in args]
        if expr.op in DIVISIONS and not (args[1].op in _LITERALS and likely(args[1].value) > 0):
            return self._divided(op_type, expr, attributes)
        return self.writer.emit(op_type, inputs, f"{name}:{expr.op}", **attributes)

    def _divided(self, op_type: str, expr: Expr, attributes: dict[str, Any]) -> str:
        """A quotient or remainder, 0 where the divisor is.  A quotient by -1 is a difference:
        that of the smallest integer would end a process, too."""
        x, y = map(self.value, expr.args)
        zero, one = self._number(0, expr), self._number(1, expr)
        is_zero = self._emit("Equal", [y, zero], expr)
        is_mirror = self._emit("Equal", [y, self._number(-1, expr)], expr)
        divisor = self._emit("Where", [self._emit("Or", [is_zero, is_mirror], expr), one, y], expr)
        found = self._emit(op_type, [x, divisor], expr, **attributes)
        if op_type == "Div":
            mirrored = self._emit("Sub", [zero, x], expr)
            found = self._emit("Where", [is_mirror, mirrored, found], expr)
        return self._emit("Where", [is_zero, zero, found], expr)

    def _shifted(self, expr: Expr) -> str:
        """A shift of integers with a sign: to the right of its distance from 0 or -1; amounts
        outside of the width leave nothing but the sign."""
        x, y = map(self.value, expr.args)
        dtype, zero = self._dtype(expr), self._number(0, expr)
        width = self._number(8 * dtype.numpy.itemsize, expr)
        known = [self._emit(op, [y, end], expr) for op, end in (("Less", width), ("Less", zero))]
        is_inside = self._emit("And", [known[0], self._emit("Not", [known[1]], expr)], expr)
        amount = self._unsigned(self._emit("Where", [is_inside, y, zero], expr), expr)
        is_negative = self._emit("Less", [x, zero], expr)
        if expr.op == "ishr":
            x = self._mirrored(x, is_negative, expr)
        shifted = self._emit(
            "BitShift", [self._unsigned(x, expr), amount], expr, direction=SHIFTS[expr.op]
        )
        found = self._cast(shifted, dtype)
        found = self._emit("Where", [is_inside, found, zero], expr)
        return self._mirrored(found, is_negative, expr) if expr.op == "ishr" else found

    def _mirrored(self, x: str, is_negative: str, expr: Expr) -> str:
        """-1 - x where a number was negative."""
        other = self._emit("Sub", [self._number(-1, expr), x], expr)
        return self._emit("Where", [is_negative, other, x], expr)

    def _unsigned(self, x: str, expr: Expr) -> str:
        return self._emit("Cast", [x], expr, to=onnx.TensorProto.UINT64)

    def _dtype(self, expr: Expr) -> DType:
        """The type of an integer expression."""
        kinds = tuple(kind_of(operand.type.dtype) for operand in self.node.operands)
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


def is_widened(dtype: DType) -> bool:
    """Whether elements are widened to int32 before they are computed with."""
    return kind_of(dtype) == "i" and dtype is not DType.I32
