"""Layers whose weights a model has as integers: these stay, with their scales."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node, StoredConstant
from quantglow.ops.contraction import Contraction
from quantglow.quantization.plan.params import MIN_SCALE, QuantizedWeights
from quantglow.types import DType

ROUNDED_TWICE = "the model has its weights as integers, which int8 would round again"


def reads_stored_weights(node: Node) -> bool:
    """Whether an operand is integers of the model, as reals."""
    return any(isinstance(operand, StoredConstant) for operand in node.operands)


def stored_weights(node: Node) -> QuantizedWeights | None:
    """The weights of a layer that the model has as integers, if int8 has them exactly with one
    scale for each output channel."""
    if not isinstance(node, Contraction) or not isinstance(node.w, StoredConstant):
        return None
    return None if node.w.integers is None else exact_weights(node.w.integers)


def exact_weights(integers: Node) -> QuantizedWeights | None:
    """The integers as weights of zero point 0; None where int8 has no such weights."""
    whole = centred(integers)
    if whole is None or whole[1].any() or (whole[2] < MIN_SCALE).any():
        return None
    return QuantizedWeights(whole[0], whole[2], None)


def centred(w: Node) -> tuple[Array, Array, Array] | None:
    """Weights as int8 of zero point 0; for each channel (last axis) the amount by which they are
    too low, and a scale.

    Zero points are subtracted, which is exact if all differences of a channel are int8.  If not, as
    happens with uint8, the codes stay as they are.
    """
    if not isinstance(w, Constant) or w.type.dtype is not DType.I8:
        return None
    params, channels = w.type.params, w.type.shape[-1:]
    if params.axis not in (None, w.type.rank - 1):
        return None
    zero_points = np.broadcast_to(np.asarray(params.zero_points, np.int32), channels)
    differences = w.value.astype(np.int32) - zero_points
    axes, (lowest, highest) = tuple(range(w.type.rank - 1)), DType.I8.limits
    fits = ((lowest <= differences) & (differences <= highest)).all(axis=axes)
    weights = np.where(fits, differences, w.value).astype(np.int8)
    scales = np.broadcast_to(np.asarray(params.scales, np.float32), channels).copy()
    return weights, np.where(fits, 0, -zero_points), scales
