"""BatchNormalization and other factors behind products with quantized weights.

Real weights are ``scale * code``: a factor for each channel goes into the scale, and the integers
that the user rounded stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Add, BatchNormalization, Dequantize, Mul
from quantglow.ops.contraction import Contraction
from quantglow.passes.batch_norm_constants import scale_and_shift
from quantglow.passes.constants import channel_values, float_constant
from quantglow.passes.simplify_arithmetic import plain
from quantglow.quantization.plan.params import QuantizedWeights
from quantglow.quantization.plan.stored_layers import exact_weights
from quantglow.quantization.qdq.contraction import integers_of, real_bias
from quantglow.types import DType, ElementType, QuantParams


@rewrite_pass("fold-scales")
def fold_scales(node: Node, uses: Uses) -> Node | None:
    """Conv(x, Dequantize(w), b) * s + t -> Conv(x, Dequantize(w'), b * s + t), w' of scale * |s|"""
    found = affine(node)
    integers = None if found is None else integers_of(found[0])
    if found is None or integers is None:
        return None
    return scaled(node, *found, QuantizedWeights(integers.weights, integers.scales, None), uses)


@rewrite_pass("fold-stored-scales")
def fold_stored_scales(node: Node, uses: Uses) -> Node | None:
    """``fold_scales`` of products of float activations"""
    found = affine(node)
    w = None if found is None else found[0].w
    weights = exact_weights(w.x) if isinstance(w, Dequantize) else None
    return None if found is None or weights is None else scaled(node, *found, weights, uses)


def scaled(
    node: Node, product: Contraction, scale: Array, shift: Array, w: QuantizedWeights, uses: Uses
) -> Node | None:
    """The product with factors in the scales of its weights, under the name of the node."""
    bias = np.zeros(scale.shape) if product.b is None else real_bias(product)
    if bias is None or not product.is_bare or not uses.single(product):
        return None
    codes = np.where(scale < 0, -1, 1) * w.weights.astype(np.int32)
    scales = (w.scales * np.abs(scale)).astype(np.float32)
    if codes.max(initial=0) > DType.I8.limits[1] or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    element = ElementType(DType.I8, QuantParams.symmetric(scales, codes.ndim - 1))
    stored = Constant(
        name=uses.fresh(f"{node.name}:codes"), value=codes.astype(np.int8), element=element
    )
    changes: dict[str, Any] = {
        "name": node.name,
        "w": Dequantize(name=uses.fresh(f"{node.name}:w"), x=stored),
        "b": float_constant(bias * scale + shift, f"{node.name}:bias", uses),
    }
    return replace(product, **changes)


def affine(node: Node) -> tuple[Contraction, Array, Array] | None:
    """(product, scale, shift) of a node that computes ``product * scale + shift`` by channel."""
    if isinstance(node, BatchNormalization) and isinstance(node.x, Contraction):
        constants = scale_and_shift(node)
        return None if constants is None else (node.x, *constants)
    if not isinstance(node, Mul | Add) or not plain(node) or not isinstance(node.x, Contraction):
        return None
    product = node.x
    values = channel_values(node.y, product.type.shape[-1], product.type.rank)
    if values is None or node.type != product.type:
        return None
    wide = values.astype(np.float64)
    if isinstance(node, Mul):
        return product, wide, np.zeros_like(wide)
    return product, np.ones_like(wide), wide
