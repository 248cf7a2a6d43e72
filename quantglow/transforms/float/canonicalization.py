"""Canonical forms of products and pools.

MatMul with constant weights becomes Gemm; squeeze-excite blocks written with Gemm become 1x1
convolutions, without the Reshapes around them; keys or values that are repeated, one copy for each
head of queries, are read by one product; the global average is ReduceMean over H and W that keeps
the axes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.convolution import Conv, Gemm, MatMul
from quantglow.ir.ops.pooling import AveragePool, ReduceMean
from quantglow.ir.ops.shape import Expand, Reshape, Transpose
from quantglow.ir.ops.unary import Unary
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import Size, decide_equal, prod, surely_equal
from quantglow.transforms.float.constant_folding import is_float
from quantglow.transforms.float.layout import derive, reshape
from quantglow.transforms.rewrite import Uses, decline, rewrite_pass

SWAPPED = (0, 1, 3, 2)


@rewrite_pass("matmul-to-gemm")
def matmul_to_gemm(node: Node, uses: Uses) -> Node | None:
    """MatMul(x, Constant [K, N]) -> Gemm, leading axes of x flattened to rows"""
    match node:
        case MatMul(x=x, y=Constant() as w, out=None) if w.type.rank == 2 and is_float(x):
            *batch, k = x.type.shape
            rows = reshape(x, (prod(batch), k), uses)
            product = Gemm(name=node.name, x=rows, w=w)
            if decide_equal(product.type.shape, node.type.shape):
                return product
            name = uses.fresh(derive(node.name, ":r"))
            return Reshape(name=name, x=product, shape=node.type.shape)
    return None


@rewrite_pass("gemm-to-conv")
def gemm_to_conv(node: Node, uses: Uses) -> Node | None:
    """Reshape(f(Gemm(Reshape(x [N,1,1,K])))) -> f(Conv(x)) where the result is [N, 1, 1, O]"""
    match node:
        case Reshape(x=Gemm() | Unary() as x, shape=(n, _, _, o)) if x.type.rank == 2:
            is_image = decide_equal(node.shape, (n, 1, 1, o))
            return _as_image(x, uses) if is_image and decide_equal(x.type.shape, (n, o)) else None
    return None


def _as_image(node: Node, uses: Uses) -> Node | None:
    """The value [N, K] computed as [N, 1, 1, K], if it comes from such an image."""
    if isinstance(node, Reshape):
        n, k = node.shape
        return node.x if decide_equal(node.x.type.shape, (n, 1, 1, k)) else None
    if not uses.single(node) or not isinstance(node, Gemm | Unary):
        return None
    x = _as_image(node.operands[0], uses)
    if x is None:
        return None
    return _pointwise(node, x, uses) if isinstance(node, Gemm) else node.with_operands((x,))


def _pointwise(node: Gemm, x: Node, uses: Uses) -> Node | None:
    """The Gemm as a 1x1 convolution."""
    if not isinstance(node.w, Constant):
        return None
    value = np.ascontiguousarray(node.w.value)[None, None]
    element = node.w.element
    if element is not None and element.quant is not None and element.quant.axis is not None:
        axis = element.quant.axis + 2
        element = replace(element, quant=replace(element.quant, axis=axis))
    w = Constant(name=uses.fresh(derive(node.w.name, ":1x1")), value=value, element=element)
    return Conv(name=node.name, x=x, w=w, b=node.b, **node.attributes())


@rewrite_pass("group-heads")
def group_heads(node: Node, uses: Uses) -> Node | None:
    """MatMul(x, y repeated) -> MatMul(x, y), the heads that share y being rows of one product"""
    match node:
        case MatMul(y=Reshape(x=Expand() as wide) as joined, out=None):
            return _group(node, joined, wide, False, uses)
        case MatMul(y=Transpose(x=Reshape(x=Expand() as wide) as joined, perm=perm), out=None):
            return _group(node, joined, wide, True, uses) if perm == SWAPPED else None
    return None


def _group(node: MatMul, joined: Reshape, wide: Expand, swapped: bool, uses: Uses) -> Node | None:
    x, shape = node.x.type, wide.type.shape
    if len(shape) != 5 or x.rank != 4:
        return None
    batch, shared, copies, *inner = shape
    small = (batch, shared, 1, *inner)
    if isinstance(copies, Size) or copies < 2 or not surely_equal(wide.x.type.shape, small):
        return None
    heads = shared * copies
    if not surely_equal(joined.shape, (batch, heads, *inner)):
        return None
    if not surely_equal(x.shape[:2], (batch, heads)):
        return decline(node, "x does not have the heads of the repeated operand")
    rows = reshape(node.x, (batch, shared, copies * x.shape[2], x.shape[3]), uses)
    once = reshape(wide.x, (batch, shared, *inner), uses)
    if swapped:
        once = Transpose(name=uses.fresh(derive(node.name, ":t")), x=once, perm=SWAPPED)
    product = MatMul(name=node.name, x=rows, y=once)
    return Reshape(name=uses.fresh(derive(node.name, ":r")), x=product, shape=node.type.shape)


@rewrite_pass("canonicalize-pool")
def canonicalize_pool(node: Node, uses: Uses) -> Node | None:
    """AveragePool of the whole image, ReduceMean without keepdims -> ReduceMean(axes=(1, 2))"""
    match node:
        case AveragePool(x=x, out=None) if _covers(node):
            return ReduceMean(name=node.name, x=x, axes=(1, 2))
        case ReduceMean(axes=(1, 2), keepdims=False) if node.x.type.rank == 4:
            mean = replace(node, keepdims=True)
            name = uses.fresh(derive(node.name, ":r"))
            return Reshape(name=name, x=mean, shape=node.type.shape)
    return None


def _covers(node: AveragePool) -> bool:
    """Whether the only window is exactly the image."""
    whole = decide_equal(node.kernel, node.x.type.shape[1:3]) and node.dilations == (1, 1)
    return whole and not has_padding(node.pads) and decide_equal(node.type.shape[1:3], (1, 1))
