"""Contractions with arithmetic moved into weights and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.rewrite import Uses
from quantglow.ops.contraction import Contraction
from quantglow.passes.constants import bias_of, float_constant, weights_of


def with_affine_result(
    node: Contraction, name: str, scale: Array | None, shift: Array | None, uses: Uses
) -> Contraction:
    """``node(x) * scale + shift`` per output channel, as one contraction called ``name``."""
    bias = bias_of(node).astype(np.float64)
    weights = node.w
    if scale is not None:
        product = weights_of(node) * scale.astype(np.float32)
        weights = float_constant(product, f"{name}:w", uses)
        bias = bias * scale
    if shift is not None:
        bias = bias + shift
    changed = float_constant(bias, f"{name}:b", uses)
    return replace(node, name=name, w=weights, b=changed)  # type: ignore[call-arg]
