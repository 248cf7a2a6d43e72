"""Element-wise operators.

Unary operators are float only: the quantizer turns them into 256-entry ``Table``s of the exact
function.  Binary operators are float or quantized.  A quantized one converts its integers to
float32 in units of the output step, computes, and rounds once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops import special
from quantglow.ops.arithmetic import centred, integer_bounds, is_integer, multiplier, saturate
from quantglow.types import Array, DType, ElementType, TensorType


class Unary(Node):
    """``y = function(x)`` on float tensors."""

    x: Node

    def function(self, x: Any) -> Any:
        """The function on an array of any float precision."""
        raise NotImplementedError

    def infer(self) -> TensorType:
        if not self.x.type.dtype.is_float:
            raise self.refuse("x must be float")
        return self.x.type

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.function(x), x.dtype)


@op
class Relu(Unary):
    """``max(x, 0)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.maximum(x, 0)


@op
class LeakyRelu(Unary):
    """``x if x >= 0 else alpha * x``"""

    x: Node
    alpha: float

    def function(self, x: Any) -> Any:
        return np.where(x < 0, x * x.dtype.type(self.alpha), x)


@op
class Clip(Unary):
    """``min(max(x, low), high)``"""

    x: Node
    low: float = -math.inf
    high: float = math.inf

    def function(self, x: Any) -> Any:
        return np.minimum(np.maximum(x, x.dtype.type(self.low)), x.dtype.type(self.high))


@op
class Sigmoid(Unary):
    """``1 / (1 + exp(-x))``"""

    x: Node

    def function(self, x: Any) -> Any:
        return special.expit(x)


@op
class HardSigmoid(Unary):
    """``max(0, min(1, alpha * x + beta))``"""

    x: Node
    alpha: float = 0.2
    beta: float = 0.5

    def function(self, x: Any) -> Any:
        t = x.dtype.type
        return np.clip(x * t(self.alpha) + t(self.beta), t(0), t(1))


@op
class HardSwish(Unary):
    """``x * max(0, min(1, x / 6 + 0.5))``"""

    x: Node

    def function(self, x: Any) -> Any:
        t = x.dtype.type
        return x * np.clip(x * t(1 / 6) + t(0.5), t(0), t(1))


@op
class Swish(Unary):
    """``x * sigmoid(alpha * x)``, SiLU for alpha 1."""

    x: Node
    alpha: float = 1.0

    def function(self, x: Any) -> Any:
        return x * special.expit(x * x.dtype.type(self.alpha))


@op
class Tanh(Unary):
    """``tanh(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.tanh(x)


@op
class Erf(Unary):
    """``erf(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return special.erf(x)


@op
class Gelu(Unary):
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or the tanh form when ``approximate``."""

    x: Node
    approximate: bool = False

    def function(self, x: Any) -> Any:
        t = x.dtype.type
        if self.approximate:
            inner = t(math.sqrt(2 / math.pi)) * (x + t(0.044715) * x * x * x)
            return t(0.5) * x * (t(1) + np.tanh(inner))
        return t(0.5) * x * (t(1) + special.erf(x * t(math.sqrt(0.5))))


@op
class Softplus(Unary):
    """``log(1 + exp(x))``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@op
class Elu(Unary):
    """``x if x >= 0 else alpha * (exp(x) - 1)``"""

    x: Node
    alpha: float = 1.0

    def function(self, x: Any) -> Any:
        t = x.dtype.type
        return np.where(x < 0, t(self.alpha) * (np.exp(np.minimum(x, 0)) - t(1)), x)


@op
class Exp(Unary):
    """``exp(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.exp(x)


@op
class Log(Unary):
    """``log(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.log(x)


@op
class Sqrt(Unary):
    """``sqrt(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.sqrt(x)


@op
class Reciprocal(Unary):
    """``1 / x``"""

    x: Node

    def function(self, x: Any) -> Any:
        return x.dtype.type(1) / x


@op
class Neg(Unary):
    """``-x``"""

    x: Node

    def function(self, x: Any) -> Any:
        return -x


@op
class Abs(Unary):
    """``|x|``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.abs(x)


@op
class Floor(Unary):
    """``floor(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.floor(x)


@op
class Ceil(Unary):
    """``ceil(x)``"""

    x: Node

    def function(self, x: Any) -> Any:
        return np.ceil(x)


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


@op
class PRelu(Node):
    """``x if x >= 0 else slope * x``; ``slope`` is a float Constant that broadcasts to x."""

    x: Node
    slope: Node
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if broadcast(self, self.x.type.shape, self.slope.type.shape) != self.x.type.shape:
            raise self.refuse("slope must broadcast to x")
        if not self.slope.type.dtype.is_float:
            raise self.refuse("slope must be float")
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        return self.x.type if self.out is None else self.x.type.with_element(self.out)

    def reference(self, x: Array, slope: Array) -> Array:
        if self.out is None:
            return np.where(x < 0, x * slope, x)
        values = centred(x, self.x.type).astype(np.float32)
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

    def infer(self) -> TensorType:
        if self.condition.type.dtype is not DType.BOOL:
            raise self.refuse("the condition must be bool")
        if self.x.type.element != self.y.type.element:
            raise self.refuse("x and y must have the same element type")
        return self.x.type.with_shape(broadcast(self, *(o.type.shape for o in self.operands)))

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)
