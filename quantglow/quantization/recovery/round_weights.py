"""round-weights: round each weight so that it makes up for the rounding of those before it.

GPTQ (Frantar et al., 2023, arXiv:2210.17323) in the equal form of LDLQ (Chee et al., 2023,
QuIP, arXiv:2307.13304): with the input covariance ``C = F D F'``, F unit upper triangular, and
errors ``e = w - q``,

    q_k = round(w_k + sum over j < k of F_jk e_j)

makes each term of ``e' C e = sum of D_k (e_k + sum over j < k of F_jk e_j)**2`` as small as
rounding can.  The covariance stands where GPTQ has the second moments: a constant error is left
to the bias.  Inputs that vary most come first.
"""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.quantization.plan.params import WEIGHT_LIMIT
from quantglow.quantization.recovery.factors import Feedback
from quantglow.quantization.recovery.layer import Layer

BLOCK = 64
"""Number of rows whose errors are passed on one by one, before a matrix product passes on all of
them."""


def round_weights(layer: Layer) -> Layer:
    """The target rounded against the data, in the channels where that lowers the error."""
    integers = rounded(layer.rounding(layer.reach), layer.statistics.feedback())
    return layer.taking(integers, layer.reach)


def rounded(w: Array, feedback: Feedback) -> Array:
    """Integers in [-127, 127] near ``w`` [G, K, O], with a small ``(w - q)' metric (w - q)`` for
    the metric that ``feedback`` is of.
    """
    in_order = np.take_along_axis(w, feedback.order, axis=1)
    found = _round_in_order(in_order, feedback.factors)
    integers = np.empty_like(found)
    np.put_along_axis(integers, feedback.order, found, axis=1)
    return integers


def _round_in_order(w: Array, factors: Array) -> Array:
    integers, errors = np.empty_like(w), np.zeros_like(w)
    turned = factors.transpose(0, 2, 1)
    for start in range(0, w.shape[1], BLOCK):
        block = slice(start, min(start + BLOCK, w.shape[1]))
        wanted = w[:, block] + turned[:, block, :start] @ errors[:, :start]
        for i in range(start, block.stop):
            row = (turned[:, i : i + 1, start:i] @ errors[:, start:i])[:, 0]
            steps = np.add(wanted[:, i - start], row, out=integers[:, i])
            np.rint(steps, out=steps)
            np.maximum(steps, -WEIGHT_LIMIT, out=steps)
            np.minimum(steps, WEIGHT_LIMIT, out=steps)
            np.subtract(w[:, i], steps, out=errors[:, i])
    return integers
