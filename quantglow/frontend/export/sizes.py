"""Sizes that depend on free dimensions, as ONNX nodes that compute them.

A size is an expression of symbols (``symbolic``), each of which is a dimension of an input.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Protocol

import numpy as np

from quantglow.foreign_types import Array
from quantglow.symbolic.expression import (
    Atom,
    Expression,
    Maximum,
    Monomial,
    Quotient,
    Symbol,
    number,
)


class SizeWriter(Protocol):
    """The part of a ``Writer`` that sizes need."""

    dimensions: dict[str, tuple[str, int]]
    """The ONNX value and the axis of each symbol."""
    sizes: dict[Expression, str]
    """Sizes that are written, as values of shape [1]."""

    def emit(self, op_type: str, inputs: Iterable[str], hint: str, **attributes: Any) -> str:
        """Append a node; the value it computes."""

    def constant(self, array: Array, hint: str) -> str:
        """An initializer."""


def size(expression: Expression, w: SizeWriter) -> str:
    """An ONNX value of shape [1], written once."""
    if expression not in w.sizes:
        w.sizes[expression] = _sum(expression, w)
    return w.sizes[expression]


def _sum(expression: Expression, w: SizeWriter) -> str:
    if (constant := expression.constant) is not None:
        return w.constant(np.array([constant], np.int64), str(constant))
    parts = [_product(monomial, factor, w) for monomial, factor in expression.terms]
    return reduce(lambda a, b: w.emit("Add", [a, b], str(expression)), parts)


def _product(monomial: Monomial, factor: int, w: SizeWriter) -> str:
    parts = [_atom(atom, w) for atom in monomial]
    if factor != 1 or not parts:
        parts.append(size(number(factor), w))
    hint = "*".join(map(str, monomial))
    return reduce(lambda a, b: w.emit("Mul", [a, b], hint), parts)


def _atom(atom: Atom, w: SizeWriter) -> str:
    match atom:
        case Symbol(name=name):
            value, axis = w.dimensions[name]
            return w.emit("Shape", [value], name, start=axis, end=axis + 1)
        case Maximum(first=first, second=second):
            return w.emit("Max", [size(first, w), size(second, w)], str(atom))
        case Quotient(numerator=numerator, divisor=divisor):
            return _quotient(numerator, divisor, w)


def _quotient(numerator: Expression, divisor: Expression, w: SizeWriter) -> str:
    """Rounded down: ONNX rounds towards zero, so a remainder that may be negative is taken off."""
    hint, x, y = f"({numerator})/({divisor})", size(numerator, w), size(divisor, w)
    if numerator.bounds[0] < 0:
        x = w.emit("Sub", [x, w.emit("Mod", [x, y], f"{hint}:rest")], f"{hint}:whole")
    return w.emit("Div", [x, y], hint)
