"""Squeeze-excite blocks written with Gemm: 1x1 convolutions, without the Reshapes around them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.convolution import Conv, Gemm
from quantglow.ops.shape import Reshape
from quantglow.ops.unary import Unary
from quantglow.passes.layout import derived


@rewrite_pass("gemm-to-conv")
def gemm_to_conv(node: Node, uses: Uses) -> Node | None:
    """Reshape(f(Gemm(Reshape(x [N,1,1,K])))) -> f(Conv(x)) where the result is [N, 1, 1, O]"""
    match node:
        case Reshape(x=Gemm() | Unary() as x, shape=(n, 1, 1, o)) if x.type.shape == (n, o):
            return as_image(x, uses)
    return None


def as_image(node: Node, uses: Uses) -> Node | None:
    """The value [N, K] computed as [N, 1, 1, K], if it comes from such an image."""
    if isinstance(node, Reshape):
        n, k = node.shape
        return node.x if node.x.type.shape == (n, 1, 1, k) else None
    if not uses.single(node) or not isinstance(node, Gemm | Unary):
        return None
    x = as_image(node.operands[0], uses)
    if x is None:
        return None
    return pointwise(node, x, uses) if isinstance(node, Gemm) else node.with_operands((x,))


def pointwise(node: Gemm, x: Node, uses: Uses) -> Node | None:
    """The Gemm as a 1x1 convolution."""
    if not isinstance(node.w, Constant):
        return None
    value = np.ascontiguousarray(node.w.value)[None, None]
    element = node.w.element
    if element is not None and element.quant is not None and element.quant.axis is not None:
        axis = element.quant.axis + 2
        element = replace(element, quant=replace(element.quant, axis=axis))
    w = Constant(name=uses.fresh(derived(node.w.name, ":1x1")), value=value, element=element)
    return Conv(name=node.name, x=x, w=w, b=node.b, **node.attributes())
