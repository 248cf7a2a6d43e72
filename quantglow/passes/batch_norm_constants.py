"""A BatchNormalization as ``x * scale + shift``."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.ops.normalization import BatchNormalization


def scale_and_shift(node: BatchNormalization) -> tuple[Array, Array] | None:
    """float64 ``gamma / sqrt(var + eps)`` and ``beta - mean * scale``; None if not constant."""
    parameters = (node.gamma, node.beta, node.mean, node.var)
    if not all(isinstance(p, Constant) for p in parameters):
        return None
    gamma, beta, mean, var = (
        p.value.astype(np.float64) for p in parameters if isinstance(p, Constant)
    )
    scale = gamma / np.sqrt(var + node.epsilon)
    return scale, beta - mean * scale
