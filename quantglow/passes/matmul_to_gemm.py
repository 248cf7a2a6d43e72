"""MatMul with constant weights."""

from __future__ import annotations

import math

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.convolution import Gemm, MatMul
from quantglow.ops.shape import Reshape
from quantglow.passes.constants import is_float
from quantglow.passes.layout import derived, reshaped


@rewrite_pass("matmul-to-gemm")
def matmul_to_gemm(node: Node, uses: Uses) -> Node | None:
    """MatMul(x, Constant [K, N]) -> Gemm, leading axes of x flattened to rows"""
    match node:
        case MatMul(x=x, y=Constant() as w, out=None) if w.type.rank == 2 and is_float(x):
            *batch, k = x.type.shape
            rows = reshaped(x, (math.prod(batch), k), uses)
            product = Gemm(name=node.name, x=rows, w=w)
            if product.type.shape == node.type.shape:
                return product
            name = uses.fresh(derived(node.name, ":r"))
            return Reshape(name=name, x=product, shape=node.type.shape)
    return None
