"""Arithmetic with Constants: one spelling, and chains merged to one Mul, Add or Clip.

Constants stand right, and only Add and Mul take them.  A chain of constant arithmetic becomes at
most one Mul, then one Add; a chain of Relu, Clip, Max and Min with scalars becomes one Clip.
``factors`` takes products apart, so that activation functions are recognized in any association.
``factor_gate`` makes one product of a value added to itself times a gate, instead of two passes
over an image.
"""

from __future__ import annotations

import math

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.binary import Add, Binary, Div, Max, Min, Mul, Pow, Sub
from quantglow.ir.ops.unary import Clip, Neg, Relu, Sqrt
from quantglow.ir.symbolic.size import decide
from quantglow.support.arrays import Array
from quantglow.transforms.float.constant_folding import (
    absorbs,
    close,
    float_constant,
    is_float,
    is_infinite,
    scalar_constant,
)
from quantglow.transforms.rewrite import Uses, decline, rewrite_pass

Bounds = tuple[float, float]

DEPTH = 4
"""Nested products that are taken apart: no known spelling needs more."""


@rewrite_pass("simplify-arithmetic")
def simplify_arithmetic(node: Node, uses: Uses) -> Node | None:
    """c + x -> x + c; x - c -> x + (-c); x / c -> x * (1/c); c - Conv(x) -> Conv(x) * -1 + c"""
    if isinstance(node, Neg):
        return _negate(node.name, node.x, uses) if absorbs(node.x, node, uses) else None
    if not isinstance(node, Binary) or not plain(node):
        return None
    match node:
        case Add() | Mul() | Max() | Min() if isinstance(node.x, Constant):
            swapped = not isinstance(node.y, Constant)
            return node.with_operands((node.y, node.x)) if swapped else None
        case Sub(x=x, y=Constant(value=c)) if not isinstance(x, Constant):
            return Add(name=node.name, x=x, y=float_constant(-c, f"{node.name}:y", uses))
        case Sub(x=Constant() as c, y=y) if absorbs(y, node, uses):
            minus = _negate(uses.fresh(f"{node.name}:neg"), y, uses)
            return Add(name=node.name, x=minus, y=c)
        case Div(x=x, y=Constant(value=c)) if _invertible(c):
            reciprocal = np.float32(1) / c
            return Mul(name=node.name, x=x, y=float_constant(reciprocal, f"{node.name}:y", uses))
        case Pow(x=x, y=Constant() as y) if x.type == node.type:
            return _power(node.name, x, scalar_constant(y))
    return None


def plain(node: Binary) -> bool:
    """Float, nothing fused behind it yet, and no mask: weights and sums of constants that an
    infinity goes into are infinite, too, or no numbers.
    """
    bounded = node.low != -np.inf or node.high != np.inf
    is_mask = not isinstance(node, Max | Min) and any(map(is_infinite, node.operands))
    is_whole = not bounded and node.out is None and not is_mask
    return is_whole and is_float(node.x) and is_float(node.y)


def _invertible(c: Array) -> bool:
    """Whether neither the values nor their reciprocals overflow or vanish."""
    magnitude = np.abs(c)
    return bool(np.all((magnitude > 1e-30) & (magnitude < 1e30)))


def _negate(name: str, x: Node, uses: Uses) -> Node:
    return Mul(name=name, x=x, y=float_constant(-1.0, f"{name}:y", uses))


def _power(name: str, x: Node, exponent: float | None) -> Node | None:
    """The powers that are cheaper as another operator."""
    if exponent == 2:
        return Mul(name=name, x=x, y=x)
    return Sqrt(name=name, x=x) if exponent == 0.5 else None


@rewrite_pass("merge-arithmetic")
def merge_arithmetic(node: Node, uses: Uses) -> Node | None:
    """x + a + b -> x + (a + b); x * a * b -> x * (a * b); (x + a) * b -> x * b + a * b"""
    if not isinstance(node, Add | Mul) or not isinstance(node.y, Constant):
        return None
    inner = node.x
    if not isinstance(inner, Add | Mul) or not isinstance(inner.y, Constant):
        return None
    if not (plain(node) and plain(inner) and uses.only(node, inner)):
        return None
    a, b = inner.y.value, node.y.value
    if isinstance(inner, Mul) and isinstance(node, Add):
        return None
    if not _compact(a, b):
        return decline(node, "the combined constant would be larger than both")
    with np.errstate(over="ignore"):
        combined = a + b if isinstance(node, Add) else a * b
    return _merge(node, inner, combined, uses) if np.isfinite(combined).all() else None


def _merge(node: Binary, inner: Binary, combined: Array, uses: Uses) -> Node:
    """``combined``: the sum or product of both Constants."""
    product = float_constant(combined, f"{node.name}:y", uses)
    if isinstance(node, Add):
        return Add(name=node.name, x=inner.x, y=product)
    if isinstance(inner, Mul):
        return Mul(name=node.name, x=inner.x, y=product)
    scaled = Mul(name=uses.fresh(f"{node.name}:scaled"), x=inner.x, y=node.y)
    return Add(name=node.name, x=scaled, y=product)


def _compact(a: Array, b: Array) -> bool:
    """Whether combining the two makes no constant larger than they are."""
    return int(np.prod(np.broadcast_shapes(a.shape, b.shape))) <= max(a.size, b.size)


@rewrite_pass("merge-clips")
def merge_clips(node: Node, uses: Uses) -> Node | None:
    """Clip(Clip(x)) -> Clip(x); Max(x, c) -> Clip(x, c, inf); Clip(x, 0, inf) -> Relu(x)"""
    outer = node_bounds(node)
    if outer is None:
        return None
    x = node.operands[0]
    inner = node_bounds(x)
    if inner is not None:
        return clip(node.name, x.operands[0], narrow(inner, outer))
    if isinstance(node, Relu) or (isinstance(node, Clip) and outer != (0.0, math.inf)):
        return None
    return clip(node.name, x, outer)


def node_bounds(node: Node) -> Bounds | None:
    """(low, high) of a node that clips its first operand."""
    match node:
        case Relu():
            return 0.0, math.inf
        case Clip(low=low, high=high):
            return low, high
        case Max(x=x, y=y) if (c := scalar_constant(y)) is not None and x.type == node.type:
            return (c, math.inf) if plain(node) and not math.isnan(c) else None
        case Min(x=x, y=y) if (c := scalar_constant(y)) is not None and x.type == node.type:
            return (-math.inf, c) if plain(node) and not math.isnan(c) else None
    return None


def narrow(inner: Bounds, outer: Bounds) -> Bounds:
    """The bounds of clipping to ``inner`` and then to ``outer``."""
    low, high = outer
    return min(max(inner[0], low), high), min(max(inner[1], low), high)


def clip(name: str, x: Node, bounds: Bounds) -> Node:
    if bounds == (0.0, math.inf):
        return Relu(name=name, x=x)
    return Clip(name=name, x=x, low=bounds[0], high=bounds[1])


def factors(node: Node, depth: int = DEPTH) -> tuple[float, list[Node]]:
    """``c * f0 * f1 * …``: the product of the scalar Constants, and the other factors."""
    scalar = scalar_constant(node)
    if scalar is not None:
        return scalar, []
    if depth == 0 or not isinstance(node, Mul) or not plain(node):
        return 1.0, [node]
    left, right = factors(node.x, depth - 1), factors(node.y, depth - 1)
    return left[0] * right[0], left[1] + right[1]


def plus_scalar(node: Node) -> tuple[Node, float] | None:
    """``(x, c)`` of ``x + c``."""
    if isinstance(node, Add) and plain(node):
        for x, y in ((node.x, node.y), (node.y, node.x)):
            c = scalar_constant(y)
            if c is not None and x.type == node.type:
                return x, c
    return None


def add_to(node: Node, value: float) -> Node | None:
    """``x`` of ``x + value``."""
    addition = plus_scalar(node)
    return addition[0] if addition is not None and close(addition[1], value) else None


def scale_by(node: Node, scale: float) -> list[Node] | None:
    """The other factors of a product whose scalar Constants make ``scale``."""
    c, others = factors(node)
    return others if close(c, scale) else None


def partner(node: Binary, scale: float = 1.0) -> list[tuple[Node, Node]]:
    """``(x, g)`` for each way to read the node as ``scale * x * g``, x of the node's type."""
    others = scale_by(node, scale)
    if others is None or len(others) != 2:
        return []
    a, b = others
    return [(x, g) for x, g in ((a, b), (b, a)) if x.type == node.type]


@rewrite_pass("factor-gate")
def factor_gate(node: Node, uses: Uses) -> Node | None:
    """x + x * g -> x * (g + 1) where g is smaller than x, as the gate of a squeeze-excite is"""
    if not isinstance(node, Add) or not plain(node):
        return None
    for product, value in ((node.y, node.x), (node.x, node.y)):
        if not isinstance(product, Mul) or not plain(product) or not uses.only(node, product):
            continue
        for x, gate in partner(product):
            is_gate = x is value and x.type == node.type
            if is_gate and decide(gate.type.size < x.type.size):
                return Mul(name=node.name, x=x, y=_plus_one(node, gate, uses))
    return None


def _plus_one(node: Node, gate: Node, uses: Uses) -> Node:
    name = uses.fresh(f"{node.name}:gate")
    return Add(name=name, x=gate, y=float_constant(1.0, f"{node.name}:one", uses))
