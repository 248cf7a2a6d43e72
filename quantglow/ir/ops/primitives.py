"""Primitives that many operators become: at import if they compute integers or conditions, else
when they are lowered.

A backend implements them, and the operators that lowering leaves as they are (see
``quantglow.transforms.lowering``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.binary import broadcast
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.functions import dtype_kind
from quantglow.ir.ops.samples import if_aligned
from quantglow.ir.symbolic.size import Shape, decide
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array


@op
class Elementwise(Node):
    """``expression`` on every element of the broadcast operands, stored as ``out``.

    The expression must give integers that fit ``out``; nothing checks that.
    """

    args: tuple[Node, ...]
    expression: Expr
    out: ElementType

    traits = frozenset({Trait.ELEMENTWISE})
    in_place = ("args",)

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self)

    def infer(self) -> TensorType:
        if self.expression.row_functions():
            raise self.refuse(f"{self.expression} is not element by element")
        return _infer_type(self, self.args, self.expression, self.out)

    def reference(self, args: tuple[Array, ...]) -> Array:
        shape = np.broadcast_shapes(*(a.shape for a in args))
        result = np.broadcast_to(self.expression.evaluate(args), shape)
        return result.astype(DType(self.out.dtype).numpy)


@op
class RowMap(Node):
    """``Elementwise`` with sums and maxima of rows in the expression; rows lie along the last axis.

    Sums have a fixed order, so that every target gives the same floats.
    """

    args: tuple[Node, ...]
    expression: Expr
    out: ElementType

    in_place = ("args",)

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self) if self.type.rank > 1 else None

    def infer(self) -> TensorType:
        result = _infer_type(self, self.args, self.expression, self.out)
        if result.rank < 1 or decide(result.shape[-1] < 1):
            raise self.refuse("the last axis must not be empty")
        if any(t.dtype is DType.I64 for t in (result, *(a.type for a in self.args))):
            raise self.refuse("its tensors must not be int64")
        if result.dtype is DType.BOOL:
            raise self.refuse("its result must not be a condition")
        return result

    def reference(self, args: tuple[Array, ...]) -> Array:
        shape = np.broadcast_shapes(*(a.shape for a in args))
        values = self.expression.evaluate([np.broadcast_to(a, shape) for a in args])
        return np.broadcast_to(values, shape).astype(DType(self.out.dtype).numpy)


def _infer_type(
    node: Node, args: tuple[Node, ...], expression: Expr, out: ElementType
) -> TensorType:
    """The type of an expression on broadcast operands."""
    if expression.operand_count() > len(args):
        raise node.refuse(f"{expression} reads more than {len(args)} operand(s)")
    try:
        kind = expression.kind(tuple([dtype_kind(a.type.dtype) for a in args]))
    except TypeError as error:
        raise node.refuse(f"{expression}: {error}") from None
    if kind != dtype_kind(out.dtype):
        raise node.refuse(f"{expression} is of kind {kind}, not {out.dtype}")
    shape = broadcast(node, *(a.type.shape for a in args))
    return TensorType(out.dtype, shape, out.quant)
