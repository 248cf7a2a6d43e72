"""The NCHW flatten before a classifier: reorder the weight rows instead of the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.convolution import Gemm
from quantglow.ops.shape import Reshape, Transpose
from quantglow.passes.layout import Axes, derived, inverse


@rewrite_pass("fold-transpose-into-gemm")
def fold_transpose_into_gemm(node: Node, uses: Uses) -> Node | None:
    """Gemm(Reshape(Transpose(x)), w) -> Gemm(Reshape(x), w with its rows permuted)"""
    match node:
        case Gemm(x=Reshape(x=Transpose(perm=perm) as t, shape=shape) as flat, w=Constant() as w):
            if perm[0] != 0 or t.type.shape[0] != shape[0]:
                return None
            value = permuted_rows(w.value, t.type.shape[1:], perm)
            rows = Constant(
                name=uses.fresh(derived(w.name, ":rows")), value=value, element=w.element
            )
            x = Reshape(name=uses.fresh(derived(flat.name, ":nhwc")), x=t.x, shape=shape)
            return replace(node, x=x, w=rows)
    return None


def permuted_rows(w: Array, sizes: Axes, perm: Axes) -> Array:
    """Rows indexed by transposed axes, re-indexed by the axes before the transpose."""
    columns = w.shape[1]
    back = tuple(axis - 1 for axis in inverse(perm)[1:])
    cube = w.reshape(*sizes, columns).transpose(*back, len(sizes))
    return np.ascontiguousarray(cube).reshape(-1, columns)
