"""Functions of one value, element by element: each is declared once, here.  See README.md.

They are float only: the quantizer turns them into 256-entry ``Table``s of the exact function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from quantglow.ir.graph.kinds import Kind, Trait, taking
from quantglow.ir.graph.node import Node, op, share_fields
from quantglow.ir.ops.expression import Expr, arg, call, clip, exact, if_negative
from quantglow.ir.ops.functions import expit
from quantglow.ir.ops.native import map_array
from quantglow.ir.ops.samples import if_aligned
from quantglow.ir.symbolic.size import Shape
from quantglow.ir.types import TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

X = arg(0)
ONE = exact(1)
SMALLEST_EXPONENT = -87.33654
"""The smallest float32 whose power of e is at least 2^-126: smaller ones would be subnormal, which
costs a processor a hundred cycles each."""


@share_fields
class Unary(Node):
    """``y = function(x)`` on float tensors.

    The class name is the name of the ONNX operator, float attributes have its names and defaults,
    and ``since`` is the first opset that has it.  ``expression`` is what import, lowering, export
    and the reference take the function from.
    """

    x: Node

    traits = frozenset({Trait.ELEMENTWISE, Trait.LIGHT, Trait.FUNCTION, Trait.FINISHES})
    takes = taking(x=Kind.FLOAT)
    since: ClassVar[int] = 1

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_aligned(self)

    def expression(self) -> Expr:
        """The function of ``$0``, in the steps that compiled code takes."""
        raise NotImplementedError

    def formula(self) -> Expr:
        """The function in the steps of ONNX's definition: the expression, unless compiled code
        takes others.  Exported where the oldest runtimes lack the operator."""
        return self.expression()

    def function(self, x: Any) -> Any:
        """The function on an array of any float precision: the formula, unless its steps trade
        exactness for speed.  Ranges, tables and the interpreter take it.

        ``tests/unit/ir/ops/test_unary.py`` holds that it equals the expression but for rounding,
        and that an operator declares two only where they differ.
        """
        return self.formula().evaluate([x], real=x.dtype.type)

    @cached_property
    def _steps(self) -> Expr:
        """``expression()``, made once: calibration evaluates the node for each sample."""
        return self.expression()

    def infer(self) -> TensorType:
        return self.x.type

    def reference(self, x: Array) -> Array:
        if self.has(Trait.EXACT_STEPS) and x.dtype == np.float32:
            return map_array(self._steps, x)
        return np.asarray(self.function(x), x.dtype)


def _power_beside_one(x: Expr) -> Expr:
    """``e ** x`` for a sum with 1, in which all powers below e ** -17 vanish."""
    return call("exp", call("max", x, exact(SMALLEST_EXPONENT)))


def _normal_power(x: Expr) -> Expr:
    """``e ** x``, or 0 where that is subnormal."""
    is_small = call("lt", x, exact(SMALLEST_EXPONENT))
    return call("select", is_small, exact(0), _power_beside_one(x))


@op
class Relu(Unary):
    """``max(x, 0)``"""

    traits = Unary.traits | {Trait.EXACT_STEPS, Trait.KEEPS_ZERO}

    def expression(self) -> Expr:
        return call("max", X, exact(0))


@op
class Clip(Unary):
    """``min(max(x, low), high)``"""

    low: float = -math.inf
    high: float = math.inf

    traits = Unary.traits | {Trait.EXACT_STEPS}

    def expression(self) -> Expr:
        return clip(X, self.low, self.high)


@op
class Sigmoid(Unary):
    """``1 / (1 + exp(-x))``"""

    def expression(self) -> Expr:
        return ONE / (ONE + _power_beside_one(-X))

    def function(self, x: Any) -> Any:
        return expit(x)


@op
class Swish(Unary):
    """``x * sigmoid(alpha * x)``, SiLU for alpha 1."""

    alpha: float = 1.0

    since = 24

    def expression(self) -> Expr:
        return X / (ONE + _power_beside_one(X * -self.alpha))

    def function(self, x: Any) -> Any:
        return x * expit(x * x.dtype.type(self.alpha))


@op
class Tanh(Unary):
    """``tanh(x)``"""

    def expression(self) -> Expr:
        return call("tanh", X)


@op
class Erf(Unary):
    """``erf(x)``"""

    since = 9

    def expression(self) -> Expr:
        return call("erf", X)


@op
class Gelu(Unary):
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or the tanh form when ``approximate``."""

    approximate: bool = False

    since = 20

    def expression(self) -> Expr:
        """x times a gate in which nothing cancels below 0."""
        return X * call("tanhgate" if self.approximate else "ndtr", X)

    def formula(self) -> Expr:
        if self.approximate:
            gate = call("tanh", (X + X * 0.044715 * X * X) * math.sqrt(2 / math.pi))
        else:
            gate = call("erf", X * math.sqrt(0.5))
        return X * 0.5 * (ONE + gate)


@op
class Softplus(Unary):
    """``log(1 + exp(x))``"""

    def expression(self) -> Expr:
        power = _normal_power(-call("abs", X))
        return call("max", X, exact(0)) + call("log1p", power)

    def function(self, x: Any) -> Any:
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@op
class Softsign(Unary):
    """``x / (1 + |x|)``"""

    def expression(self) -> Expr:
        return X / (ONE + call("abs", X))


@op
class Elu(Unary):
    """``x if x >= 0 else alpha * (exp(x) - 1)``"""

    alpha: float = 1.0

    def expression(self) -> Expr:
        return if_negative(X, call("expm1", X) * self.alpha, X)


@op
class Celu(Unary):
    """``x if x >= 0 else alpha * (exp(x / alpha) - 1)``"""

    alpha: float = 1.0

    since = 12

    def expression(self) -> Expr:
        return if_negative(X, exact(self.alpha) * call("expm1", X / self.alpha), X)


@op
class Selu(Unary):
    """``gamma * (x if x >= 0 else alpha * (exp(x) - 1))``"""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def expression(self) -> Expr:
        return exact(self.gamma) * if_negative(X, exact(self.alpha) * call("expm1", X), X)


@op
class ThresholdedRelu(Unary):
    """``x if x > alpha else 0``"""

    alpha: float = 1.0

    since = 10

    def expression(self) -> Expr:
        return call("select", call("gt", X, exact(self.alpha)), X, exact(0))


@op
class Shrink(Unary):
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, else 0."""

    bias: float = 0.0
    lambd: float = 0.5

    since = 9

    def expression(self) -> Expr:
        is_above = call("gt", X, exact(self.lambd))
        above = call("select", is_above, X - self.bias, exact(0))
        return call("select", call("lt", X, exact(-self.lambd)), X + self.bias, above)


@op
class Exp(Unary):
    """``exp(x)``"""

    def expression(self) -> Expr:
        return call("exp", X)


@op
class Log(Unary):
    """``log(x)``"""

    def expression(self) -> Expr:
        return call("log", X)


@op
class Sqrt(Unary):
    """``sqrt(x)``"""

    traits = Unary.traits | {Trait.KEEPS_ZERO}

    def expression(self) -> Expr:
        return call("sqrt", X)


@op
class Reciprocal(Unary):
    """``1 / x``"""

    def expression(self) -> Expr:
        return ONE / X


@op
class Neg(Unary):
    """``-x``"""

    traits = Unary.traits | {Trait.EXACT_STEPS, Trait.KEEPS_ZERO}

    def expression(self) -> Expr:
        return -X


@op
class Abs(Unary):
    """``|x|``"""

    traits = Unary.traits | {Trait.EXACT_STEPS, Trait.KEEPS_ZERO}

    def expression(self) -> Expr:
        return call("abs", X)


@op
class Floor(Unary):
    """``floor(x)``"""

    def expression(self) -> Expr:
        return call("floor", X)


@op
class Ceil(Unary):
    """``ceil(x)``"""

    def expression(self) -> Expr:
        return call("ceil", X)


Interval = tuple[float, float]
UNIT_ERROR = 1e-12


class Fusible(Unary):
    """A cheap function that a contraction may apply to its sums: see ``ops.activation``.

    These take the parameters of the operator, its attributes in order:
    ``scaled(k, u, *parameters)``: the expression of k times the function of u times ``$0``.
    ``unit(k, *parameters)``: the u that saves a multiplication.
    ``live(*parameters)``: the arguments outside of which the function is constant.
    """

    traits = Unary.traits | {Trait.EXACT_STEPS}
    homogeneous: ClassVar[bool] = False
    scaled: ClassVar[Callable[..., Expr]]
    unit: ClassVar[Callable[..., float]]
    live: ClassVar[Callable[..., Interval]]

    def expression(self) -> Expr:
        return type(self).scaled(1.0, 1.0, *self.attributes().values())


def affine(x: Expr, a: float, b: float = 0.0) -> Expr:
    """``a * x + b``; the a that a unit has made 1 or -1, to float64, costs nothing."""
    if math.isclose(a, -1.0, rel_tol=UNIT_ERROR):
        return b - x
    value = x if math.isclose(a, 1.0, rel_tol=UNIT_ERROR) else x * a
    return value + b if b else value


def inverse(k: float) -> float:
    return 1 / abs(k) if k else 1.0


@op
class LeakyRelu(Fusible):
    """``x if x >= 0 else alpha * x``"""

    alpha: float = 0.01

    homogeneous = True

    @staticmethod
    def scaled(k: float, u: float, alpha: float) -> Expr:
        return if_negative(X, affine(X, u * k * alpha), affine(X, u * k))

    @staticmethod
    def unit(k: float, alpha: float) -> float:
        return inverse(k)

    @staticmethod
    def live(alpha: float) -> Interval:
        return -math.inf, math.inf


@op
class HardSigmoid(Fusible):
    """``max(0, min(1, alpha * x + beta))``"""

    alpha: float = 0.2
    beta: float = 0.5

    @staticmethod
    def scaled(k: float, u: float, alpha: float, beta: float) -> Expr:
        return clip(affine(X, u * k * alpha, k * beta), min(k, 0.0), max(k, 0.0))

    @staticmethod
    def unit(k: float, alpha: float, beta: float) -> float:
        return inverse(k * alpha)

    @staticmethod
    def live(alpha: float, beta: float) -> Interval:
        """Between the arguments at which ``alpha * x + beta`` is 0 and 1."""
        if alpha == 0:
            return -math.inf, math.inf
        ends = (-beta / alpha, (1 - beta) / alpha)
        return min(ends), max(ends)


@op
class HardSwish(Fusible):
    """``x * max(0, min(1, x / 6 + 0.5))``"""

    since = 14

    @staticmethod
    def scaled(k: float, u: float) -> Expr:
        """``k x / 6 * (clip(x, -3, 3) + 3)``, x = u * $0; with k = u = 1 the same bits as the
        definition: rounding keeps order."""
        near = clip(X, -3 / u, 3 / u)
        return X * affine(near, u * u * k / 6, u * k / 2)

    @staticmethod
    def unit(k: float) -> float:
        return math.sqrt(6 * inverse(k))

    @staticmethod
    def live() -> Interval:
        return -3.0, math.inf
