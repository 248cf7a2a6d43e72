"""Cheap functions that a contraction applies to its sums before they are rounded.

An entry of ``_FUNCTIONS`` says all there is to know of one: its expression, a few float32
operations in a fixed order, which NumPy evaluates and backends emit.  The result's step is part of
the constants, so that rounding to integers costs no operation more; and since integer sums are
multiplied by a scale anyway, they may come in the unit that saves the function a multiplication.
Functions with exp or log stay operators of their own: in int8 a table, they would cost more here
than the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from quantglow.graph.attributes import register
from quantglow.graph.node import Node, attribute_fields
from quantglow.lazy import cached_property
from quantglow.ops.expression import Expr, arg, call, clipped, const, if_negative
from quantglow.ops.unary import HardSigmoid, HardSwish, LeakyRelu, Unary
from quantglow.types import Array

X = arg(0)
Interval = tuple[float, float]
UNIT_ERROR = 1e-12
TINY, HUGE = 1e-30, 1e30
"""Units beyond are left at 1: scales divided by them would not be float32."""


class Form(NamedTuple):
    """``kind``: the operator.  ``scaled(k, u, *parameters)``: the expression of k times the
    function of u times ``$0``.  ``unit(k, *parameters)``: the u that saves a multiplication.
    ``live(*parameters)``: the arguments outside of which the function is constant.
    """

    kind: type[Unary]
    scaled: Callable[..., Expr]
    unit: Callable[..., float]
    live: Callable[..., Interval]
    homogeneous: bool = False


def _affine(x: Expr, a: float, b: float = 0.0) -> Expr:
    """``a * x + b``; the a that a unit has made 1 or -1, to float64, costs nothing."""
    if math.isclose(a, -1.0, rel_tol=UNIT_ERROR):
        return call("sub", const(b), x)
    value = x if math.isclose(a, 1.0, rel_tol=UNIT_ERROR) else call("mul", x, const(a))
    return call("add", value, const(b)) if b else value


def _hard_swish(k: float, u: float) -> Expr:
    """``k x / 6 * (clip(x, -3, 3) + 3)``, x = u * $0"""
    near = clipped(X, -3 / u, 3 / u)
    return call("mul", X, _affine(near, u * u * k / 6, u * k / 2))


def _hard_sigmoid(k: float, u: float, alpha: float, beta: float) -> Expr:
    return clipped(_affine(X, u * k * alpha, k * beta), min(k, 0.0), max(k, 0.0))


def _ends(alpha: float, beta: float) -> Interval:
    """Where ``alpha * x + beta`` is 0 and 1."""
    if alpha == 0:
        return -math.inf, math.inf
    ends = (-beta / alpha, (1 - beta) / alpha)
    return min(ends), max(ends)


def _leaky_relu(k: float, u: float, alpha: float) -> Expr:
    return if_negative(X, _affine(X, u * k * alpha), _affine(X, u * k))


def _inverse(k: float) -> float:
    return 1 / abs(k) if k else 1.0


_FUNCTIONS: dict[str, Form] = {
    form.kind.__name__: form
    for form in (
        Form(HardSigmoid, _hard_sigmoid, lambda k, alpha, beta: _inverse(k * alpha), _ends),
        Form(
            HardSwish,
            _hard_swish,
            lambda k: math.sqrt(6 * _inverse(k)),
            lambda: (-3.0, math.inf),
        ),
        Form(
            LeakyRelu,
            _leaky_relu,
            lambda k, alpha: _inverse(k),
            lambda alpha: (-math.inf, math.inf),
            homogeneous=True,
        ),
    )
}

ACTIVATIONS: tuple[type[Unary], ...] = tuple(form.kind for form in _FUNCTIONS.values())
"""Operators that may become part of a contraction."""


def expression_of(node: Unary) -> Expr:
    """The function of ``$0`` that one of ``ACTIVATIONS`` computes."""
    return _FUNCTIONS[node.op].scaled(1.0, 1.0, *node.attributes().values())


@dataclass(frozen=True)
class Activation:
    """``factor * op(x; parameters) + offset``; parameters are the operator's attributes in order.

    All numbers are rounded to float32, as ONNX stores them.  Raises ``ValueError`` for other
    operators than ``ACTIVATIONS`` and for numbers that are not finite then.
    """

    op: str
    parameters: tuple[float, ...] = ()
    factor: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.op not in _FUNCTIONS:
            raise ValueError(f"{self.op!r} is not one of {', '.join(_FUNCTIONS)}")
        names = attribute_fields(self.form.kind)
        if len(self.parameters) != len(names):
            raise ValueError(f"{self.op} takes {len(names)} parameters, not {self.parameters}")
        rounded = tuple(map(_float32, (self.factor, self.offset, *self.parameters)))
        if not all(map(math.isfinite, rounded)):
            raise ValueError(f"{self.op}: parameters, factor and offset must be finite")
        for name, value in zip(("factor", "offset"), rounded, strict=False):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "parameters", rounded[2:])

    @staticmethod
    def of(node: Unary) -> Activation:
        """What one of ``ACTIVATIONS`` computes.  Raises ``ValueError``."""
        return Activation(node.op, tuple(node.attributes().values()))

    @property
    def form(self) -> Form:
        return _FUNCTIONS[self.op]

    @cached_property
    def live(self) -> Interval:
        """The arguments outside of which the function is constant on either side."""
        return self.form.live(*self.parameters)

    @property
    def homogeneous(self) -> bool:
        """Whether f(s x) = s f(x) for positive s."""
        return self.form.homogeneous and self.offset == 0

    def scaled(self, factor: float) -> Activation:
        """``factor`` times it.  Raises ``ValueError`` where that overflows."""
        return replace(self, factor=self.factor * factor, offset=self.offset * factor)

    def moved(self, offset: float) -> Activation:
        """It plus ``offset``.  Raises ``ValueError`` where that overflows."""
        return replace(self, offset=self.offset + offset)

    def unit(self, step: float) -> float:
        """The real value of 1 in sums that are best for results in steps of that size."""
        found = self.form.unit(self.factor / step, *self.parameters)
        return found if TINY < found < HUGE else 1.0

    def expression(self, step: float | None = None) -> Expr:
        """The function of ``$0``, a real; with ``step`` of sums in ``unit(step)``, in steps.

        Reals are multiplied and added to as by operators of their own, to the last bit.
        """
        form, parameters = self.form, self.parameters
        if step is None:
            return _affine(form.scaled(1.0, 1.0, *parameters), self.factor, self.offset)
        with np.errstate(over="ignore"):  # Constants beyond float32 saturate all results.
            value = form.scaled(self.factor / step, self.unit(step), *parameters)
            return _affine(value, 1.0, self.offset / step)

    def evaluate(self, x: Array, step: float | None = None) -> Array:
        """The function of a float32 array, see ``expression``."""
        with np.errstate(all="ignore"):
            return np.asarray(self.expression(step).evaluate([x]), np.float32)

    def attributes(self) -> dict[str, float]:
        """The parameters by their names."""
        return dict(zip(attribute_fields(self.form.kind), self.parameters, strict=True))

    def unary(self, name: str, x: Node) -> Unary:
        """The operator without factor and offset."""
        fields: dict[str, Any] = {"x": x, **self.attributes()}
        return self.form.kind(name=name, **fields)

    def reach(self, limit: float, step: float) -> float:
        """An upper bound of the magnitude in steps, for sums in ``unit(step)`` of at most
        ``limit``; infinite where float32 might not hold what is computed on the way."""
        parts = [part for part in self.expression(step).parts() if part.op != "lt"]
        found = [max(-low, high) for low, high in (_interval(p, (-limit, limit)) for p in parts)]
        largest = float(np.finfo(np.float32).max)
        return found[0] if all(magnitude < largest for magnitude in found) else math.inf


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _interval(expr: Expr, x: Interval) -> Interval:
    """Bounds of the results for ``$0`` within ``x``."""
    if expr.op == "arg":
        return x
    if expr.op == "f":
        return expr.value, expr.value
    if expr.op == "select":
        one, other = (_interval(branch, x) for branch in expr.args[1:])
        return min(one[0], other[0]), max(one[1], other[1])
    (a, b), (c, d) = (_interval(part, x) for part in expr.args)
    if expr.op == "mul":
        products = (a * c, a * d, b * c, b * d)
        return min(products), max(products)
    ends = {
        "sub": (a - d, b - c),
        "add": (a + c, b + d),
        "max": (max(a, c), max(b, d)),
        "min": (min(a, c), min(b, d)),
    }
    return ends[expr.op]


def _encode(activation: Activation) -> tuple[object, ...]:
    values = (activation.op, activation.parameters, activation.factor, activation.offset)
    defaults = (None, (), 1.0, 0.0)
    count = max(i for i in range(4) if values[i] != defaults[i])
    return values[: count + 1]


def _decode(op: str, parameters: Any = (), factor: float = 1.0, offset: float = 0.0) -> Activation:
    if not isinstance(parameters, tuple):
        raise TypeError("parameters must be a tuple")
    numbers = (*parameters, factor, offset)
    if not isinstance(op, str) or not all(type(n) in (int, float) for n in numbers):
        raise TypeError("expected the name of an operator and numbers")
    return Activation(op, tuple(map(float, parameters)), float(factor), float(offset))


register(Activation, _encode, _decode)
