"""The proof that scaled sums of a convolution fit int32."""

from __future__ import annotations

import numpy as np

from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.ops import Conv
from quantglow.types import TensorType

LARGEST_WEIGHT = 128
"""Maximum magnitude of int8 weights."""
LIMIT = 2.0**30
"""Bound of scaled sums that are far from the limits of int32, whatever roundings did."""


def may_overflow(op: Conv) -> bool:
    """Whether a scaled sum might not fit int32, for any input of the convolution's type."""
    assert isinstance(op.w, Constant)
    w = op.w.value
    if op.activation is None and not _may_exceed(op, LARGEST_WEIGHT * w[..., 0].size):
        return False  # Most networks: no look at each weight.
    return _may_exceed(op, channel_sums(w, magnitudes=True))


def _may_exceed(op: Conv, magnitudes: Array | int) -> bool:
    """``may_overflow`` with weights of these magnitudes, added for each channel."""
    assert isinstance(op.b, Constant)
    largest = largest_code(op.x.type) * np.asarray(magnitudes, np.float64)
    largest = largest + np.abs(op.b.value.astype(np.float64))
    bound = float((largest * multipliers(op)).max(initial=0.0))
    if op.residual is not None:
        kind = op.residual.type
        bound += largest_code(kind) * kind.params.scale / op.sum_step
    if op.activation is not None:
        bound = op.activation.reach(bound, op.type.params.scale)
    return not bound < LIMIT


def multipliers(op: Conv) -> Array:
    """float32 [O]: from sums to steps of the result (or reals)."""
    scale = np.asarray(op.accumulator_scale(), np.float32)
    return np.broadcast_to(scale, (op.type.shape[-1],))


def largest_code(kind: TensorType) -> float:
    """The largest distance of an integer from the zero point."""
    low, high = kind.dtype.limits
    return float(max(high - kind.params.zero_point, kind.params.zero_point - low))
