"""Primitives that exist only after lowering: what many operators become.

A backend implements these, and the operators that lowering leaves as they are (see
``quantglow.lowering``).
"""

from __future__ import annotations

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops.elementwise import broadcast
from quantglow.ops.expression import Expr
from quantglow.types import Array, DType, ElementType, TensorType


@op
class Map(Node):
    """``expression`` on every element of the broadcast operands, stored as ``out``."""

    args: tuple[Node, ...]
    expression: Expr
    out: ElementType

    def infer(self) -> TensorType:
        if self.expression.operand_count() > len(self.args):
            raise self.refuse(f"{self.expression} reads more than {len(self.args)} operand(s)")
        shape = broadcast(self, *(a.type.shape for a in self.args))
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, args: tuple[Array, ...]) -> Array:
        with np.errstate(all="ignore"):
            values = self.expression.evaluate(args)
        result = np.broadcast_to(np.asarray(values), self.type.shape)
        return result.astype(DType(self.out.dtype).numpy)
