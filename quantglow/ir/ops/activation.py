"""Cheap functions that a contraction applies to its sums before they are rounded.

The ``Fusible`` operators of ``ops.unary`` declare them: a few float32 operations in a fixed order,
which NumPy evaluates and backends emit.  The result's step is part of the constants, so that
rounding to integers costs no operation more; and since integer sums are multiplied by a scale
anyway, they may come in the unit that saves the function a multiplication.
Functions with exp or log stay operators of their own: in int8 a table, they would cost more here
than the convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.ir.graph.attributes import register
from quantglow.ir.graph.node import OPS, Node, attribute_fields
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.native import map_array
from quantglow.ir.ops.unary import Fusible, Interval, affine
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

TINY, HUGE = 1e-30, 1e30
"""Units outside are left at 1: scales divided by them would not be float32."""


def _kind(op: str) -> type[Fusible]:
    """The operator of that name.  Raises ``ValueError`` for those that are not ``Fusible``."""
    kind = OPS.get(op)
    if kind is None or not issubclass(kind, Fusible):
        names = [name for name, cls in OPS.items() if issubclass(cls, Fusible)]
        raise ValueError(f"{op!r} is not one of {', '.join(names)}")
    return kind


@dataclass(frozen=True)
class Activation:
    """``factor * op(x; parameters) + offset``; parameters are the operator's attributes in order.

    All numbers are rounded to float32, as ONNX stores them.  Raises ``ValueError`` for other
    operators than the ``Fusible`` ones and for numbers that are not finite then.
    """

    op: str
    parameters: tuple[float, ...] = ()
    factor: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        names = attribute_fields(self.kind)
        if len(self.parameters) != len(names):
            raise ValueError(f"{self.op} takes {len(names)} parameters, not {self.parameters}")
        rounded = tuple(map(_float32, (self.factor, self.offset, *self.parameters)))
        if not all(map(math.isfinite, rounded)):
            raise ValueError(f"{self.op}: parameters, factor and offset must be finite")
        for name, value in zip(("factor", "offset"), rounded, strict=False):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "parameters", rounded[2:])

    @staticmethod
    def of(node: Fusible) -> Activation:
        """The function of a node.  Raises ``ValueError``."""
        return Activation(node.op, tuple(node.attributes().values()))

    @property
    def kind(self) -> type[Fusible]:
        """The operator."""
        return _kind(self.op)

    @cached_property
    def live(self) -> Interval:
        """The arguments outside of which the function is constant on either side."""
        return self.kind.live(*self.parameters)

    @property
    def homogeneous(self) -> bool:
        """Whether f(s x) = s f(x) for positive s."""
        return self.kind.homogeneous and self.offset == 0

    def scaled(self, factor: float) -> Activation:
        """The activation times ``factor``.  Raises ``ValueError`` if that overflows."""
        return replace(self, factor=self.factor * factor, offset=self.offset * factor)

    def moved(self, offset: float) -> Activation:
        """The activation plus ``offset``.  Raises ``ValueError`` if that overflows."""
        return replace(self, offset=self.offset + offset)

    def unit(self, step: float) -> float:
        """The real value of 1 in sums that are best for results in steps of that size."""
        unit = self.kind.unit(self.factor / step, *self.parameters)
        return unit if TINY < unit < HUGE else 1.0

    def expression(self, step: float | None = None) -> Expr:
        """The function of ``$0``, a real; with ``step`` of sums in ``unit(step)``, in steps.

        Reals are multiplied and added to as by operators of their own, to the last bit.
        """
        scaled = self.kind.scaled
        if step is None:
            value = affine(scaled(1.0, 1.0, *self.parameters), self.factor, self.offset)
        else:
            value = scaled(self.factor / step, self.unit(step), *self.parameters)
            value = affine(value, 1.0, self.offset / step)
        with np.errstate(over="ignore"):  # Constants beyond float32 saturate all results.
            return value.rounded()

    def _steps(self, step: float | None) -> Expr:
        """``expression(step)``, made once: calibration evaluates it for each sample."""
        if step not in self._expressions:
            self._expressions[step] = self.expression(step)
        return self._expressions[step]

    @cached_property
    def _expressions(self) -> dict[float | None, Expr]:
        """The expressions made so far, by their steps."""
        return {}

    def evaluate(self, x: Array, step: float | None = None) -> Array:
        """The function of a float32 array, see ``expression``."""
        with np.errstate(all="ignore"):  # Parts of sums are finished in other threads.
            return map_array(self._steps(step), x)

    def attributes(self) -> dict[str, float]:
        """The parameters by their names."""
        return dict(zip(attribute_fields(self.kind), self.parameters, strict=True))

    def unary(self, name: str, x: Node) -> Fusible:
        """The operator without factor and offset."""
        fields: dict[str, Any] = {"x": x, **self.attributes()}
        return self.kind(name=name, **fields)

    def reach(self, limit: float, step: float) -> float:
        """An upper bound of the magnitude in steps, for sums in ``unit(step)`` of at most
        ``limit``; infinite if an intermediate value might exceed float32."""
        parts = [part for part in self.expression(step).parts() if part.op != "lt"]
        magnitudes = [
            max(-low, high) for low, high in (_interval(p, (-limit, limit)) for p in parts)
        ]
        largest = float(np.finfo(np.float32).max)
        return magnitudes[0] if all(magnitude < largest for magnitude in magnitudes) else math.inf


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _interval(expr: Expr, x: Interval) -> Interval:
    """Bounds of the results for ``$0`` within ``x``."""
    if expr.op == "arg":
        return x
    if expr.op == "f":
        return float(expr.value), float(expr.value)
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
