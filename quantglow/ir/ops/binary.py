"""Functions of two values with NumPy broadcasting, and selection between two values.

They are float or quantized.  A quantized one converts its integers to float32 in units of the
output step, computes, and rounds once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import CODES, REALS, Kind, Trait, taking
from quantglow.ir.graph.node import Constant, Node, op, share_fields
from quantglow.ir.ops.arithmetic import center, integer_bounds, is_integer, multiplier, saturate
from quantglow.ir.ops.expression import Expr, arg, call
from quantglow.ir.ops.samples import if_aligned
from quantglow.ir.symbolic.size import Shape, broadcast_shapes, decide_equal
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array

X, Y = arg(0), arg(1)


@share_fields
class Binary(Node):
    """``clip(function(x, y), low, high)`` with NumPy broadcasting.

    Quantized when ``out`` is given: then one operand at least is quantized per tensor; the other
    may be a float Constant, which is taken exactly.  The class name is that of the ONNX operator.
    """

    x: Node
    y: Node
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    takes = taking(x=REALS, y=REALS, out=CODES)
    traits = frozenset({Trait.ELEMENTWISE, Trait.LIGHT, Trait.SERVES_READERS})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self)

    def expression(self) -> Expr:
        """The function of ``$0`` and ``$1``."""
        raise NotImplementedError

    def function(self, x: Any, y: Any) -> Any:
        """The function on arrays of one float precision."""
        return self.expression().evaluate([x, y], real=x.dtype.type)

    def infer(self) -> TensorType:
        shape = broadcast(self, self.x.type.shape, self.y.type.shape)
        if math.isnan(self.low) or math.isnan(self.high):
            raise self.refuse("bounds must be numbers")
        if self.out is None:
            if not (self.x.type.dtype.is_float and self.y.type.dtype.is_float):
                raise self.refuse("operands must be float unless `out` is given")
            return TensorType(DType.F32, shape)
        if not (is_integer(self.x.type) or is_integer(self.y.type)):
            raise self.refuse("`out` is quantized but no operand is")
        _check_exact_operands(self, self.x, self.y)
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, x: Array, y: Array) -> Array:
        if self.out is None:
            result = np.asarray(self.function(x, y), np.float32)
            if (self.low, self.high) == (-math.inf, math.inf):
                return result
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
            return center(array, operand.type).astype(np.float32) * ratio
        return multiplier(array, divisor=step)


def _check_exact_operands(node: Node, *operands: Node) -> None:
    """Raise ``TypeRuleError`` for a float operand of a quantized node whose values are not known:
    they are multiplied by scales before they are stored."""
    for operand in operands:
        if not is_integer(operand.type) and not isinstance(operand, Constant):
            raise node.refuse(
                f"it is quantized but its operand {operand.name!r} is a float tensor that is not "
                "constant; quantize the operand or exclude the node"
            )


def broadcast(node: Node, *shapes: Shape) -> Shape:
    """The common shape.  Raises the node's ``TypeRuleError`` when there is none."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise node.refuse("operand shapes do not broadcast") from None


@op
class Add(Binary):
    """``x + y``"""

    def expression(self) -> Expr:
        return X + Y


@op
class Sub(Binary):
    """``x - y``"""

    def expression(self) -> Expr:
        return X - Y


@op
class Mul(Binary):
    """``x * y``; quantized: the exact integer product times one float32 multiplier."""

    traits = Binary.traits | {Trait.KEEPS_ZERO}

    def expression(self) -> Expr:
        return X * Y

    def steps(self, x: Array, y: Array) -> Array:
        step = self.type.params.scale
        if is_integer(self.x.type) and is_integer(self.y.type):
            product = center(x, self.x.type) * center(y, self.y.type)
            ratio = multiplier(self.x.type.params.scale, self.y.type.params.scale, divisor=step)
            return product.astype(np.float32) * ratio
        if is_integer(self.y.type):
            x, y, integer = y, x, self.y.type
        else:
            integer = self.x.type
        factor = multiplier(y, integer.params.scale, divisor=step)
        return center(x, integer).astype(np.float32) * factor


@op
class Div(Binary):
    """``x / y``; float only (division by a Constant is rewritten to Mul)."""

    def infer(self) -> TensorType:
        if self.out is not None:
            raise self.refuse("Div has no quantized form")
        return super().infer()

    def expression(self) -> Expr:
        return X / Y


@op
class Max(Binary):
    """``max(x, y)``"""

    def expression(self) -> Expr:
        return call("max", X, Y)


@op
class Min(Binary):
    """``min(x, y)``"""

    def expression(self) -> Expr:
        return call("min", X, Y)


@op
class Pow(Binary):
    """``x ** y``; float only."""

    def infer(self) -> TensorType:
        if self.out is not None:
            raise self.refuse("Pow has no quantized form")
        return super().infer()

    def expression(self) -> Expr:
        return call("pow", X, Y)


@op
class PRelu(Node):
    """``x if x >= 0 else slope * x``; ``slope`` is a float Constant that broadcasts to x."""

    x: Node
    slope: Node
    out: ElementType | None = None

    takes = taking(x=REALS, slope=Kind.FLOAT, out=CODES)
    traits = frozenset({Trait.ELEMENTWISE, Trait.LIGHT})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self)

    def infer(self) -> TensorType:
        shape = broadcast(self, self.x.type.shape, self.slope.type.shape)
        if not decide_equal(shape, self.x.type.shape):
            raise self.refuse("slope must broadcast to x")
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        if self.out is not None:
            _check_exact_operands(self, self.slope)
        return self.x.type if self.out is None else self.x.type.with_element(self.out)

    def reference(self, x: Array, slope: Array) -> Array:
        if self.out is None:
            return np.where(x < 0, x * slope, x)
        values = center(x, self.x.type).astype(np.float32)
        scale, step = self.x.type.params.scale, self.type.params.scale
        positive, negative = multiplier(scale, divisor=step), multiplier(slope, scale, divisor=step)
        steps = values * np.where(values < 0, negative, positive)
        return saturate(steps, self.out, *self.out.dtype.limits)


@op
class Where(Node):
    """``x`` where ``condition`` holds, else ``y``, with NumPy broadcasting."""

    condition: Node
    x: Node
    y: Node

    takes = taking(condition=Kind.BOOL)
    traits = frozenset({Trait.ELEMENTWISE, Trait.MOVES, Trait.PASSES_SPECIALS})

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self)

    def infer(self) -> TensorType:
        if self.x.type.element != self.y.type.element:
            raise self.refuse("x and y must have the same element type")
        return self.x.type.with_shape(broadcast(self, *(o.type.shape for o in self.operands)))

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)
