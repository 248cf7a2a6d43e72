"""Gelu written with erf or tanh."""

from __future__ import annotations

import math

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Mul, Pow
from quantglow.ops.unary import Erf, Gelu, Tanh
from quantglow.passes.constants import is_scalar
from quantglow.passes.factors import added_to, partner, plus_scalar, scaled_by
from quantglow.passes.simplify_arithmetic import plain

CUBIC = 0.044715


@rewrite_pass("recognise-gelu")
def recognise_gelu(node: Node, uses: Uses) -> Node | None:
    """x/2 * (1 + erf(x / sqrt(2))) -> Gelu(x); x/2 * (1 + tanh(…)) -> Gelu(x, approximate)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node, 0.5):
        match added_to(gate, 1.0):
            case Erf(x=inside) if scaled_by(inside, math.sqrt(0.5)) == [x]:
                return Gelu(name=node.name, x=x)
            case Tanh(x=inside) if is_cubic(inside, x):
                return Gelu(name=node.name, x=x, approximate=True)
    return None


def is_cubic(node: Node, x: Node) -> bool:
    """``sqrt(2 / pi) * (x + 0.044715 * x**3)``, or the sum with x taken out"""
    outside = scaled_by(node, math.sqrt(2 / math.pi))
    if outside is None:
        return False
    if len(outside) == 1:
        return is_sum(outside[0], x)
    others = [f for f in outside if f is not x]
    square = plus_scalar(others[0]) if len(outside) == 2 and len(others) == 1 else None
    return square is not None and square[1] == 1 and is_power(square[0], x, 2)


def is_sum(node: Node, x: Node) -> bool:
    """``x + 0.044715 * x**3``"""
    if len(node.operands) != 2 or node.op != "Add":
        return False
    a, b = node.operands
    return (a is x and is_power(b, x, 3)) or (b is x and is_power(a, x, 3))


def is_power(node: Node, x: Node, exponent: int) -> bool:
    """``0.044715 * x**exponent``, as Pow or as a product"""
    terms = scaled_by(node, CUBIC)
    if terms is None:
        return False
    if len(terms) == 1 and isinstance(terms[0], Pow):
        return terms[0].x is x and is_scalar(terms[0].y, exponent)
    return len(terms) == exponent and all(term is x for term in terms)
