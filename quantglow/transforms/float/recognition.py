"""Recognition of operators that exporters write as arithmetic.

Gelu with erf or tanh, HardSigmoid as a clipped sum, HardSwish and Swish (SiLU) as products,
LayerNormalization with means, and the arithmetic behind it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Add, Div, LayerNormalization, Reciprocal, ReduceMean, Sqrt, Sub
from quantglow.ir.ops.binary import Mul, Pow
from quantglow.ir.ops.unary import Clip, Erf, Gelu, HardSigmoid, HardSwish, Sigmoid, Swish, Tanh
from quantglow.transforms.float.arithmetic import (
    add_to,
    factors,
    partner,
    plain,
    plus_scalar,
    scale_by,
)
from quantglow.transforms.float.constant_folding import (
    channel_values,
    close,
    float_constant,
    is_scalar,
)
from quantglow.transforms.rewrite import Uses, rewrite_pass

CUBIC = 0.044715


@rewrite_pass("recognise-gelu")
def recognise_gelu(node: Node, uses: Uses) -> Node | None:
    """x/2 * (1 + erf(x / sqrt(2))) -> Gelu(x); x/2 * (1 + tanh(…)) -> Gelu(x, approximate)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node, 0.5):
        match add_to(gate, 1.0):
            case Erf(x=inside) if scale_by(inside, math.sqrt(0.5)) == [x]:
                return Gelu(name=node.name, x=x)
            case Tanh(x=inside) if _is_cubic(inside, x):
                return Gelu(name=node.name, x=x, approximate=True)
    return None


def _is_cubic(node: Node, x: Node) -> bool:
    """``sqrt(2 / pi) * (x + 0.044715 * x**3)``, or the sum with x taken out"""
    outside = scale_by(node, math.sqrt(2 / math.pi))
    if outside is None:
        return False
    if len(outside) == 1:
        return _is_sum(outside[0], x)
    others = [f for f in outside if f is not x]
    square = plus_scalar(others[0]) if len(outside) == 2 and len(others) == 1 else None
    return square is not None and square[1] == 1 and _is_power(square[0], x, 2)


def _is_sum(node: Node, x: Node) -> bool:
    """``x + 0.044715 * x**3``"""
    if len(node.operands) != 2 or node.op != "Add":
        return False
    a, b = node.operands
    return (a is x and _is_power(b, x, 3)) or (b is x and _is_power(a, x, 3))


def _is_power(node: Node, x: Node, exponent: int) -> bool:
    """``0.044715 * x**exponent``, as Pow or as a product"""
    terms = scale_by(node, CUBIC)
    if terms is None:
        return False
    if len(terms) == 1 and isinstance(terms[0], Pow):
        return terms[0].x is x and is_scalar(terms[0].y, exponent)
    return len(terms) == exponent and all(term is x for term in terms)


@rewrite_pass("recognise-hard-sigmoid")
def recognise_hard_sigmoid(node: Node, uses: Uses) -> Node | None:
    """Clip(x + b, 0, h) * (1/h) -> HardSigmoid(x, alpha=1/h, beta=b/h)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    scale, others = factors(node)
    match others:
        case [Clip(x=shifted, low=0.0, high=high) as clip] if close(scale * high, 1.0):
            addition = plus_scalar(shifted)
            if addition is None or clip.type != node.type:
                return None
            return HardSigmoid(name=node.name, x=addition[0], alpha=scale, beta=addition[1] * scale)
    return None


@rewrite_pass("recognise-hard-swish")
def recognise_hard_swish(node: Node, uses: Uses) -> Node | None:
    """x * HardSigmoid(x; 1/6, 1/2), x * Clip(x + 3, 0, 6) / 6 -> HardSwish(x)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node):
        if _match_gate(gate) is x:
            return HardSwish(name=node.name, x=x)
    for x, gate in partner(node, 1 / 6):
        if _match_clipped_sum(gate) is x:
            return HardSwish(name=node.name, x=x)
    return None


def _match_gate(node: Node) -> Node | None:
    """``x`` of ``HardSigmoid(x; 1/6, 1/2)``"""
    if isinstance(node, HardSigmoid) and close(node.alpha, 1 / 6) and close(node.beta, 0.5):
        return node.x
    return None


def _match_clipped_sum(node: Node) -> Node | None:
    """``x`` of ``Clip(x + 3, 0, 6)``"""
    match node:
        case Clip(x=shifted, low=0.0, high=6.0):
            return add_to(shifted, 3.0)
    return None


@rewrite_pass("recognise-swish")
def recognise_swish(node: Node, uses: Uses) -> Node | None:
    """x * Sigmoid(a * x) -> Swish(x, alpha=a)"""
    if not isinstance(node, Mul) or not plain(node):
        return None
    for x, gate in partner(node):
        if not isinstance(gate, Sigmoid):
            continue
        if gate.x is x:
            return Swish(name=node.name, x=x)
        alpha, inside = factors(gate.x)
        if len(inside) == 1 and inside[0] is x:
            return Swish(name=node.name, x=x, alpha=alpha)
    return None


@rewrite_pass("recognise-layer-normalization")
def recognise_layer_normalization(node: Node, uses: Uses) -> Node | None:
    """(x - m) / sqrt(mean((x - m)**2) + eps), m = mean(x) -> LayerNormalization(x), with * c + c"""
    match node:
        case Div(x=Sub() as centered, y=Sqrt(x=shifted)) if plain(node):
            return _normalization(node, centered, shifted)
        case Mul(x=Sub() as centered, y=Reciprocal(x=Sqrt(x=shifted))) if plain(node):
            return _normalization(node, centered, shifted)
        case Mul(x=LayerNormalization() as inner) | Add(x=LayerNormalization() as inner):
            return _with_parameter(node, inner, uses)
    return None


def _normalization(node: Node, centered: Sub, shifted: Node) -> Node | None:
    """``node`` as LayerNormalization, if ``shifted`` is the variance of its rows plus epsilon."""
    x, addition = centered.x, plus_scalar(shifted)
    if addition is None or not plain(centered) or not _is_row_mean(centered.y, x):
        return None
    variance, epsilon = addition
    if not isinstance(variance, ReduceMean) or not _is_square(variance.x, centered):
        return None
    if not _is_row_mean(variance, variance.x) or node.type != x.type:
        return None
    return LayerNormalization(name=node.name, x=x, epsilon=epsilon)


def _is_row_mean(node: Node, x: Node) -> bool:
    """Whether the node is the mean of x along its last axis, which it keeps."""
    last = (x.type.rank - 1,)
    return isinstance(node, ReduceMean) and node.x is x and node.axes == last and node.keepdims


def _is_square(node: Node, x: Node) -> bool:
    if isinstance(node, Pow):
        return plain(node) and node.x is x and is_scalar(node.y, 2.0)
    return isinstance(node, Mul) and plain(node) and node.x is x and node.y is x


def _with_parameter(node: Mul | Add, inner: LayerNormalization, uses: Uses) -> Node | None:
    """The normalization with a Constant behind it as its gamma or beta, if that is free."""
    values = channel_values(node.y, node.type.shape[-1], node.type.rank)
    if values is None or inner.beta is not None or not plain(node) or not uses.only(node, inner):
        return None
    if isinstance(node, Add):
        return replace(inner, name=node.name, beta=float_constant(values, f"{node.name}:b", uses))
    if inner.gamma is not None:
        return None
    return replace(inner, name=node.name, gamma=float_constant(values, f"{node.name}:g", uses))
