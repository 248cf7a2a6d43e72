"""One spelling for arithmetic with Constants: they stand right, and only Add and Mul take them."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Binary, Div, Max, Min, Mul, Pow, Sub
from quantglow.ops.unary import Neg, Sqrt
from quantglow.passes.constants import (
    absorbs,
    float_constant,
    is_float,
    is_infinite,
    scalar_of,
)


@rewrite_pass("simplify-arithmetic")
def simplify_arithmetic(node: Node, uses: Uses) -> Node | None:
    """c + x -> x + c; x - c -> x + (-c); x / c -> x * (1/c); c - Conv(x) -> Conv(x) * -1 + c"""
    if isinstance(node, Neg):
        return negated(node.name, node.x, uses) if absorbs(node.x, node, uses) else None
    if not isinstance(node, Binary) or not plain(node):
        return None
    match node:
        case Add() | Mul() | Max() | Min() if isinstance(node.x, Constant):
            swapped = not isinstance(node.y, Constant)
            return node.with_operands((node.y, node.x)) if swapped else None
        case Sub(x=x, y=Constant(value=c)) if not isinstance(x, Constant):
            return Add(name=node.name, x=x, y=float_constant(-c, f"{node.name}:y", uses))
        case Sub(x=Constant() as c, y=y) if absorbs(y, node, uses):
            minus = negated(uses.fresh(f"{node.name}:neg"), y, uses)
            return Add(name=node.name, x=minus, y=c)
        case Div(x=x, y=Constant(value=c)) if invertible(c):
            reciprocal = np.float32(1) / c
            return Mul(name=node.name, x=x, y=float_constant(reciprocal, f"{node.name}:y", uses))
        case Pow(x=x, y=Constant() as y) if x.type == node.type:
            return power(node.name, x, scalar_of(y))
    return None


def plain(node: Binary) -> bool:
    """Float, nothing fused behind it yet, and no mask: weights and sums of constants that an
    infinity goes into are infinite, too, or no numbers.
    """
    bounded = node.low != -np.inf or node.high != np.inf
    is_mask = not isinstance(node, Max | Min) and any(map(is_infinite, node.operands))
    is_whole = not bounded and node.out is None and not is_mask
    return is_whole and is_float(node.x) and is_float(node.y)


def invertible(c: Array) -> bool:
    """Whether neither the values nor their reciprocals overflow or vanish."""
    magnitude = np.abs(c)
    return bool(np.all((magnitude > 1e-30) & (magnitude < 1e30)))


def negated(name: str, x: Node, uses: Uses) -> Node:
    return Mul(name=name, x=x, y=float_constant(-1.0, f"{name}:y", uses))


def power(name: str, x: Node, exponent: float | None) -> Node | None:
    """The powers that are cheaper as another operator."""
    if exponent == 2:
        return Mul(name=name, x=x, y=x)
    return Sqrt(name=name, x=x) if exponent == 0.5 else None
