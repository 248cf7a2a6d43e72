"""Functions of one value: each is a table in int8, and so is a chain of them, which rounds once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.ops.binary import Binary
from quantglow.ops.unary import Unary

Function = Callable[[Any], Any]


def function_of(node: Node) -> tuple[Node, Function] | None:
    """``(x, f)`` of a node that computes ``f(x)``: unary, or binary with a scalar Constant; else
    None.
    """
    if isinstance(node, Unary):
        return node.x, node.function
    if not isinstance(node, Binary) or node.out is not None:
        return None
    x, c = (node.y, node.x) if isinstance(node.x, Constant) else (node.x, node.y)
    if not isinstance(c, Constant) or isinstance(x, Constant) or c.type.size != 1:
        return None
    if x.type != node.type:
        return None
    return x, _with_constant(node, c is node.x, float(c.value.reshape(())))


def _with_constant(node: Binary, is_left: bool, c: float) -> Function:
    """The bounded function of the other operand."""

    def function(x: Any) -> Any:
        constant = x.dtype.type(c)
        value = node.function(constant, x) if is_left else node.function(x, constant)
        return np.clip(value, node.low, node.high)

    return function


def composed(node: Node, may_skip: Callable[[Node], bool]) -> tuple[Node, Function]:
    """``(x, f)`` with x as far up as the nodes between may be skipped."""
    found = function_of(node)
    assert found is not None, "the caller asked for a function of one value"
    x, function = found
    while may_skip(x) and (inner := function_of(x)) is not None:
        x, function = inner[0], _after(function, inner[1])
    return x, function


def _after(outer: Function, inner: Function) -> Function:
    return lambda x: outer(inner(x))
