"""adapt-weights: choose real weights for the input that the layer will get, before rounding them.

The int8 layer reads x, the rounded input made by the layers before it, yet should give y, the
result of the float model.  Ridge regression (as in GPTAQ, Li et al., 2025, arXiv:2504.02692, which
folds it into the rounding) moves the weights by

    dw = (cov(x, x) + r d I)^-1 cov(x, y - w x),      d = mean variance of x

so that the layer corrects errors of the layers before it.  Weights fitted on one half of the
samples must lower the error on the other half: r is chosen so for each channel, and channels where
no r helps keep w.
"""

from __future__ import annotations

import math

import numpy as np

from quantglow.foreign_types import Array
from quantglow.processes.workers import each
from quantglow.quantization.recovery.factors import solutions
from quantglow.quantization.recovery.layer import Layer
from quantglow.quantization.recovery.moments import MIN_VARIANCE, Moments

RIDGES = (1e-3, 1e-2, 1e-1)
"""Candidates for r."""

ROWS_FOR_EACH_INPUT = 2
"""Minimum number of rows in a half for each input.  With fewer, the regression would fit the
samples, not the network."""


def adapt_weights(layer: Layer) -> Layer:
    """The layer with adapted real weights to round, in the channels where they lower the error."""
    halves = layer.statistics.halves
    if len(halves) < 2 or not layer.per_channel:
        return layer
    if not adaptable(min(half.count for half in halves), layer.product.shape[1]):
        return layer
    return layer.aiming_at(layer.weights + _movement(layer))


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
