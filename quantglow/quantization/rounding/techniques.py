"""Rounding techniques for a layer: GPTAQ, GPTQ, search of scales, bias correction.

``adapt_weights``: the int8 layer reads x, the rounded input made by the layers before it, yet
should give y, the result of the float model.  Ridge regression (as in GPTAQ, Li et al., 2025,
arXiv:2504.02692, which folds it into the rounding) moves the weights by

    dw = (cov(x, x) + r d I)^-1 cov(x, y - w x),      d = mean variance of x

so that the layer corrects errors of the layers before it.  Weights fitted on one half of the
samples must lower the error on the other half: r is chosen so for each channel, and channels where
no r helps keep w.

``limit_dead_inputs``: a BatchNormalization behind a channel that never fires divides by a variance
near 0.  Folded into the layer that reads the channel, it gives weights thousands of times larger
than the others, which would all round to 0.  On the samples a smaller weight of a dead input makes
the same results.

``round_weights``: GPTQ (Frantar et al., 2023, arXiv:2210.17323) in the equal form of LDLQ (Chee et
al., 2023, QuIP, arXiv:2307.13304): with the input covariance ``C = F D F'``, F unit upper
triangular, and errors ``e = w - q``,

    q_k = round(w_k + sum over j < k of F_jk e_j)

makes each term of ``e' C e = sum of D_k (e_k + sum over j < k of F_jk e_j)**2`` as small as
rounding can.  The covariance stands where GPTQ has the second moments: a constant error is left
to the bias.  Inputs that vary most come first.

``search_scales``: for each ratio r of a grid the target is rounded, as by ``round_weights``, with
the step ``r max |w| / 127``.  The step with the smallest error stays.  This is the range search of
quantizers that minimize the square error (Banner et al., 2019, arXiv:1810.05723), with the error
weighted by the data, and with clipping errors spread over the other weights.

``correct_bias``: the bias becomes

    b = mean(y) - s mean(x) q

over the calibration data, where y is the float model's result before its clip and x the rounded
input that the layers before really give (bias correction, Nagel et al., 2019, arXiv:1906.04721,
section 4.2, with measured means).  Where both models clip, no error is left to correct; see
``layerwise``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantglow.quantization.plan.params import WEIGHT_LIMIT
from quantglow.quantization.rounding.layer import Layer
from quantglow.quantization.rounding.moments import MIN_VARIANCE, Feedback, Moments, solutions
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

RIDGES = (1e-3, 1e-2, 1e-1)
"""Candidates for r of ``adapt_weights``."""

ROWS_FOR_EACH_INPUT = 2
"""Minimum number of rows in a half for each input.  With fewer, the regression would fit the
samples, not the network."""

MAX_RATIO = 16.0
"""Maximum ratio of the largest weight of a channel to its largest one of a live input.  Above it,
live ones would have fewer than five bits, with sign."""

BLOCK = 64
"""Number of rows whose errors are passed on one by one, before a matrix product passes on all of
them."""

RATIOS = (0.9, 0.8, 0.7)
"""Candidates for r of ``search_scales``."""


def adapt_weights(layer: Layer) -> Layer:
    """The layer with adapted real weights to round, in the channels where they lower the error."""
    halves = layer.statistics.halves
    if len(halves) < 2 or not layer.per_channel:
        return layer
    if not adaptable(min(half.count for half in halves), layer.product.shape[1]):
        return layer
    return layer.retarget(layer.weights + _movement(layer))


def adaptable(rows: int, inputs: int) -> bool:
    """Whether a half with that many rows suffices to fit weights of that many inputs."""
    return rows >= ROWS_FOR_EACH_INPUT * inputs


def _movement(layer: Layer) -> Array:
    """dw [G, K, O/G], in units; 0 in channels that keep their weights."""

    def problem(moments: Moments) -> _Problem:
        return _Problem(moments.covariance().astype(np.float32), layer.cross(moments))

    def gain(trial: tuple[float, _Problem, _Problem]) -> Array:
        ridge, one, other = trial
        return other.error(one.solution(ridge))

    one, other = each(problem, layer.statistics.halves)
    gains = each(gain, [(r, *pair) for r in RIDGES for pair in ((one, other), (other, one))])
    best, least = np.full(layer.steps.shape, math.inf), np.zeros_like(layer.steps)
    for ridge, there, back in zip(RIDGES, gains[::2], gains[1::2], strict=True):
        best = np.where(there + back < least, ridge, best)
        least = np.minimum(there + back, least)
    whole = _Problem(layer.statistics.covariance, layer.cross(layer.moments))
    chosen = [ridge for ridge in RIDGES if (best == ridge).any()]
    moved = np.zeros_like(layer.weights)
    for ridge, solution in zip(chosen, each(whole.solution, chosen), strict=True):
        moved = np.where(best == ridge, solution, moved)
    return moved


class _Problem:
    """The regression of ``y - (w x + b)`` on x over some of the samples, in float32."""

    def __init__(self, covariance: Array, cross: Array) -> None:
        self.c = covariance
        variances = np.diagonal(self.c, axis1=1, axis2=2)[:, :, None]
        self.cross = np.where(variances < MIN_VARIANCE, np.float32(0), cross)
        self.level = np.maximum(variances.mean(axis=1), MIN_VARIANCE)

    def solution(self, ridge: float) -> Array:
        """dw [G, K, O/G]"""
        matrices, diagonal = self.c.copy(), np.arange(self.c.shape[1])
        matrices[:, diagonal, diagonal] += np.float32(ridge) * self.level
        return solutions(matrices, self.cross)

    def error(self, dw: Array) -> Array:
        """[G, 1, O/G]: the change of the mean square error by ``dw``."""
        change = dw * (self.c @ dw - 2 * self.cross)
        return np.asarray(change.sum(axis=1, keepdims=True, dtype=np.float64))


def limit_dead_inputs(layer: Layer) -> Layer:
    """The layer with weights of dead inputs no larger than those of live ones, in the channels that
    they dominate.
    """
    if not layer.moments.second or not layer.per_channel:
        return layer
    dead = np.diagonal(layer.moments.gram, axis1=1, axis2=2)[:, :, None] == 0
    sizes = np.abs(layer.weights)
    live = np.where(dead, np.float32(0), sizes).max(axis=1, keepdims=True)
    dominated = (live > 0) & (sizes.max(axis=1, keepdims=True) > MAX_RATIO * live)
    if not dominated.any():
        return layer
    limits = np.where(dead & dominated, live, np.float32(np.inf))
    weights = np.clip(layer.weights, -limits, limits)
    return replace(layer, weights=weights).retarget(weights)


def round_weights(layer: Layer) -> Layer:
    """The target rounded against the data, in the channels where that lowers the error."""
    integers = round_with_feedback(layer.rounding(layer.reach), layer.statistics.feedback())
    return layer.take_integers(integers, layer.reach)


def round_with_feedback(w: Array, feedback: Feedback) -> Array:
    """Integers in [-127, 127] near ``w`` [G, K, O], with a small ``(w - q)' metric (w - q)`` for
    the metric that ``feedback`` is of.
    """
    in_order = np.take_along_axis(w, feedback.order, axis=1)
    rounded_in_order = _round_in_order(in_order, feedback.factors)
    integers = np.empty_like(rounded_in_order)
    np.put_along_axis(integers, feedback.order, rounded_in_order, axis=1)
    return integers


def _round_in_order(w: Array, factors: Array) -> Array:
    integers, errors = np.empty_like(w), np.zeros_like(w)
    transposed = factors.transpose(0, 2, 1)
    # Lazy batch updates (step 2 of GPTQ): errors go beyond their block in one product.
    for start in range(0, w.shape[1], BLOCK):
        block = slice(start, min(start + BLOCK, w.shape[1]))
        shifted = w[:, block] + transposed[:, block, :start] @ errors[:, :start]
        for i in range(start, block.stop):
            row = (transposed[:, i : i + 1, start:i] @ errors[:, start:i])[:, 0]
            steps = np.add(shifted[:, i - start], row, out=integers[:, i])
            np.rint(steps, out=steps)
            np.maximum(steps, -WEIGHT_LIMIT, out=steps)
            np.minimum(steps, WEIGHT_LIMIT, out=steps)
            np.subtract(w[:, i], steps, out=errors[:, i])
    return integers


def search_scales(layer: Layer) -> Layer:
    """The layer with the step of each channel that suits its data."""
    if not layer.per_channel:
        return layer
    for ratio in RATIOS:
        scales = (layer.reach * (ratio / layer.x.scale)).astype(np.float32)
        steps = scales.astype(np.float64) * layer.x.scale
        integers = round_with_feedback(layer.rounding(steps), layer.statistics.feedback())
        layer = layer.take_integers(integers, steps)
    return layer


def correct_bias(layer: Layer) -> Layer:
    """The layer without mean error, in the channels whose accumulator has room for the bias."""
    bias = layer.shifted_bias(layer.in_units(layer.integers, layer.steps))
    fits = layer.excess(layer.integers, layer.steps, bias) <= 1
    return replace(layer, bias=np.where(fits, bias, layer.bias))
