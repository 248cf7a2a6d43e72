"""Functions of one value, element by element.

They are float only: the quantizer turns them into 256-entry ``Table``s of the exact function.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops import special
from quantglow.types import Array, TensorType


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
