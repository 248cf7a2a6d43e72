"""Export of expressions: each step is an ONNX operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from quantglow.errors import ModelError
from quantglow.frontend.export.writer import Value, Writer, export_rule, permuted
from quantglow.graph.node import Node
from quantglow.ops import Elementwise, RowMap
from quantglow.ops.expression import Expr
from quantglow.ops.functions import SELECT, kind_of
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

REDUCTIONS = {"rowsum": "ReduceSum", "rowmax": "ReduceMax"}
"""Functions of whole rows."""

_LITERALS = {"f": np.float32, "i": np.int32, "l": np.int64}


@export_rule(Elementwise)
def elementwise(node: Elementwise, w: Writer) -> Value:
    rank = node.type.rank
    perm = w.common_order(node.args, rank)
    operands = [w.spread(operand, rank, perm) for operand in node.args]
    written = Steps(node, w, operands).stored(node.expression, node.out.dtype)
    return w.rounded(node, written, perm)


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
    return w.rounded(node, written, perm)


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
        if expr.op in _LITERALS:
            return self.writer.constant(
                np.array(expr.value, _LITERALS[expr.op]), f"{name}:constant"
            )
        if expr.op in REDUCTIONS:
            axes = self.writer.integers([self.row_axis], f"{name}:axes")
            return self.writer.emit(
                REDUCTIONS[expr.op], [self.value(expr.args[0]), axes], f"{name}:{expr.op}"
            )
        if expr.op not in STEPS and expr.op not in ATTRIBUTES:
            raise ModelError(
                f"{self.node!r} cannot be written as ONNX: it has no {expr.op}. "
                "Remedy: export the graph as it was before lowering."
            )
        op_type, attributes = ATTRIBUTES.get(expr.op) or (STEPS[expr.op], {})
        args = expr.args
        if expr.op in COMMUTATIVE:
            args = tuple(sorted(args, key=lambda a: a.op in _LITERALS))
        inputs = [self.value(a) for a in args]
        return self.writer.emit(op_type, inputs, f"{name}:{expr.op}", **attributes)

    def _cast(self, value: str, dtype: DType) -> str:
        to = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
        return self.writer.emit("Cast", [value], f"{self.node.name}:{dtype}", to=to)


def is_widened(dtype: DType) -> bool:
    """Whether elements are widened to int32 before they are computed with."""
    return kind_of(dtype) == "i" and dtype is not DType.I32
