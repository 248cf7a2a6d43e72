"""LayerNormalization written with means, and the arithmetic behind it."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Add, Div, LayerNormalization, Mul, Pow, Reciprocal, ReduceMean, Sqrt, Sub
from quantglow.passes.constants import channel_values, float_constant, is_scalar
from quantglow.passes.factors import plus_scalar
from quantglow.passes.simplify_arithmetic import plain


@rewrite_pass("recognise-layer-normalization")
def recognise_layer_normalization(node: Node, uses: Uses) -> Node | None:
    """(x - m) / sqrt(mean((x - m)**2) + eps), m = mean(x) -> LayerNormalization(x), with * c + c"""
    match node:
        case Div(x=Sub() as centred, y=Sqrt(x=shifted)) if plain(node):
            return normalization(node, centred, shifted)
        case Mul(x=Sub() as centred, y=Reciprocal(x=Sqrt(x=shifted))) if plain(node):
            return normalization(node, centred, shifted)
        case Mul(x=LayerNormalization() as inner) | Add(x=LayerNormalization() as inner):
            return with_parameter(node, inner, uses)
    return None


def normalization(node: Node, centred: Sub, shifted: Node) -> Node | None:
    """``node`` as LayerNormalization, if ``shifted`` is the variance of its rows plus epsilon."""
    x, found = centred.x, plus_scalar(shifted)
    if found is None or not plain(centred) or not is_row_mean(centred.y, x):
        return None
    variance, epsilon = found
    if not isinstance(variance, ReduceMean) or not is_square(variance.x, centred):
        return None
    if not is_row_mean(variance, variance.x) or node.type != x.type:
        return None
    return LayerNormalization(name=node.name, x=x, epsilon=epsilon)


def is_row_mean(node: Node, x: Node) -> bool:
    """Whether the node is the mean of x along its last axis, which it keeps."""
    last = (x.type.rank - 1,)
    return isinstance(node, ReduceMean) and node.x is x and node.axes == last and node.keepdims


def is_square(node: Node, x: Node) -> bool:
    if isinstance(node, Pow):
        return plain(node) and node.x is x and is_scalar(node.y, 2.0)
    return isinstance(node, Mul) and plain(node) and node.x is x and node.y is x


def with_parameter(node: Mul | Add, inner: LayerNormalization, uses: Uses) -> Node | None:
    """The normalization with a Constant behind it as its gamma or beta, if that is free."""
    values = channel_values(node.y, node.type.shape[-1], node.type.rank)
    if values is None or inner.beta is not None or not plain(node) or not uses.only(node, inner):
        return None
    if isinstance(node, Add):
        return replace(inner, name=node.name, beta=float_constant(values, f"{node.name}:b", uses))
    if inner.gamma is not None:
        return None
    return replace(inner, name=node.name, gamma=float_constant(values, f"{node.name}:g", uses))
