"""The primitive that many operators become: those of integers and conditions at import, the
others when they are lowered.

A backend implements it, and the operators that lowering leaves as they are (see
``quantglow.lowering``).
"""

from __future__ import annotations

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops.binary import broadcast
from quantglow.ops.expression import Expr
from quantglow.ops.functions import kind_of
from quantglow.types import Array, DType, ElementType, TensorType


@op
class Map(Node):
    """``expression`` on every element of the broadcast operands, stored as ``out``.

    Integers that do not fit ``out`` are an error of whoever wrote the expression.
    """

    args: tuple[Node, ...]
    expression: Expr
    out: ElementType

    def infer(self) -> TensorType:
        if self.expression.operand_count() > len(self.args):
            raise self.refuse(f"{self.expression} reads more than {len(self.args)} operand(s)")
        try:
            kind = self.expression.kind([kind_of(a.type.dtype) for a in self.args])
        except TypeError as error:
            raise self.refuse(f"{self.expression}: {error}") from None
        if kind != kind_of(self.out.dtype):
            raise self.refuse(f"{self.expression} is of kind {kind}, not {self.out.dtype}")
        shape = broadcast(self, *(a.type.shape for a in self.args))
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, args: tuple[Array, ...]) -> Array:
        with np.errstate(all="ignore"):
            values = self.expression.evaluate(args)
        result = np.broadcast_to(np.asarray(values), self.type.shape)
        return result.astype(DType(self.out.dtype).numpy)
