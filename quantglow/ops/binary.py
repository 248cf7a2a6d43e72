"""Functions of two values, element by element, with NumPy broadcasting.

They are float or quantized.  A quantized one converts its integers to float32 in units of the
output step, computes, and rounds once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops.arithmetic import centred, integer_bounds, is_integer, multiplier, saturate
from quantglow.types import Array, DType, ElementType, TensorType


class Binary(Node):
    """``clip(function(x, y), low, high)`` with NumPy broadcasting.

    Quantized when ``out`` is given: then one operand at least is quantized per tensor; the other
    may be a float Constant, which is taken exactly.
    """

    x: Node
    y: Node
    low: float
    high: float
    out: ElementType | None

    def function(self, x: Any, y: Any) -> Any:
        """The function on float arrays."""
        raise NotImplementedError

    def infer(self) -> TensorType:
        shape = broadcast(self, self.x.type.shape, self.y.type.shape)
        if self.out is None:
            if not (self.x.type.dtype.is_float and self.y.type.dtype.is_float):
                raise self.refuse("operands must be float unless `out` is given")
            return TensorType(DType.F32, shape)
        if not (is_integer(self.x.type) or is_integer(self.y.type)):
            raise self.refuse("`out` is quantized but no operand is")
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, x: Array, y: Array) -> Array:
        if self.out is None:
            with np.errstate(all="ignore"):
                result = np.asarray(self.function(x, y), np.float32)
            return np.clip(result, np.float32(self.low), np.float32(self.high))
        bounds = integer_bounds(self.out, self.low, self.high)
        return saturate(self.steps(x, y), self.out, *bounds)

    def steps(self, x: Array, y: Array) -> Array:
        """The float32 result in units of the output scale, before rounding."""
        return np.asarray(self.function(self.scaled(self.x, x), self.scaled(self.y, y)))

    def scaled(self, operand: Node, array: Array) -> Array:
        """An operand's values as float32 in units of the output scale."""
        step = self.type.params.scale
        if is_integer(operand.type):
            ratio = multiplier(operand.type.params.scale, divisor=step)
            return centred(array, operand.type).astype(np.float32) * ratio
        return multiplier(array, divisor=step)


def broadcast(node: Node, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape.  Raises the node's ``TypeRuleError`` when there is none."""
    try:
        return tuple(int(d) for d in np.broadcast_shapes(*shapes))
    except ValueError:
        raise node.refuse("operand shapes do not broadcast") from None


@op
class Add(Binary):
    """``x + y``"""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def function(self, x: Any, y: Any) -> Any:
        return x + y


@op
class Sub(Binary):
    """``x - y``"""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def function(self, x: Any, y: Any) -> Any:
        return x - y


@op
class Mul(Binary):
    """``x * y``; quantized: the exact integer product times one float32 multiplier."""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def function(self, x: Any, y: Any) -> Any:
        return x * y

    def steps(self, x: Array, y: Array) -> Array:
        step = self.type.params.scale
        if is_integer(self.x.type) and is_integer(self.y.type):
            product = centred(x, self.x.type) * centred(y, self.y.type)
            ratio = multiplier(self.x.type.params.scale, self.y.type.params.scale, divisor=step)
            return product.astype(np.float32) * ratio
        if is_integer(self.y.type):
            x, y, integer = y, x, self.y.type
        else:
            integer = self.x.type
        factor = multiplier(y, integer.params.scale, divisor=step)
        return centred(x, integer).astype(np.float32) * factor


@op
class Div(Binary):
    """``x / y``; float only (division by a Constant is rewritten to Mul)."""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if self.out is not None:
            raise self.refuse("Div has no quantized form")
        return super().infer()

    def function(self, x: Any, y: Any) -> Any:
        return x / y


@op
class Max(Binary):
    """``max(x, y)``"""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def function(self, x: Any, y: Any) -> Any:
        return np.maximum(x, y)


@op
class Min(Binary):
    """``min(x, y)``"""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def function(self, x: Any, y: Any) -> Any:
        return np.minimum(x, y)


@op
class Pow(Binary):
    """``x ** y``; float only."""

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if self.out is not None:
            raise self.refuse("Pow has no quantized form")
        return super().infer()

    def function(self, x: Any, y: Any) -> Any:
        return np.power(x, y)
