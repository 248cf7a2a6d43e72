"""Constant scales and shifts before a contraction, into its weights and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import Conv, Gemm
from quantglow.passes.constants import bias_of, channel_values, float_constant, weights_of
from quantglow.passes.simplify_arithmetic import plain
from quantglow.types import Array


@rewrite_pass("fold-arithmetic-into-consumer")
def fold_arithmetic_into_consumer(node: Node, uses: Uses) -> Node | None:
    """Conv(x * c, w) -> Conv(x, w * c); Conv(x + c, w, b) -> Conv(x, w, b + sum(w * c)), no pads"""
    if not isinstance(node, Conv | Gemm) or not foldable(node):
        return None
    before = node.x
    if not isinstance(before, Add | Mul) or not plain(before) or not uses.only(node, before):
        return None
    return folded(node, before, uses) if before.x.type == before.type else None


def foldable(node: Contraction) -> bool:
    return isinstance(node.w, Constant) and isinstance(node.b, Constant | None)


def folded(node: Conv | Gemm, before: Binary, uses: Uses) -> Node | None:
    c = channel_values(before.y, before.type.shape[-1], before.type.rank)
    if c is None:
        return None
    product = weights_of(node) * by_input_channel(node, c)
    if isinstance(before, Mul):
        return replace(node, x=before.x, w=float_constant(product, f"{node.name}:w", uses))
    if isinstance(node, Conv) and any(node.pads):
        return declined(node, f"{before.name!r} adds to pixels, but not to the padding of zeros")
    sums = product.astype(np.float64).reshape(-1, product.shape[-1]).sum(axis=0)
    bias = float_constant(bias_of(node) + sums, f"{node.name}:b", uses)
    return replace(node, x=before.x, b=bias)


def by_input_channel(node: Conv | Gemm, c: Array) -> Array:
    """The values of input channels as they multiply the weights."""
    if isinstance(node, Gemm):
        return c[:, None]
    per_group = c.reshape(node.group, -1).T
    return np.repeat(per_group, node.w.type.shape[3] // node.group, axis=1)
