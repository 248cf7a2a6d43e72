"""What the techniques know and decide of one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quantglow.quantization.params import accumulator_excess, quantize_weights
from quantglow.quantization.recovery.moments import Moments
from quantglow.quantization.recovery.products import Product
from quantglow.types import Array, DType, QuantParams

DAMPING = 0.01
"""Of the mean variance, added to every variance: inputs that never vary stay harmless."""


LEAST_VARIANCE = 1e-3
"""Of an input, in steps squared: one that varies less is as good as constant."""


@dataclass(frozen=True)
class Layer:
    """One quantized product ``y = x @ (steps * integers) + bias`` and what it should give.

    x       its input, integers of ``dtype``, with the zero point taken away
    y       the float model's result, less what is added to the product (see ``walk``)
    All arrays by group: weights [G, K, O/G], steps [G, 1, O/G] and bias [G, 1, O/G] in units of
    the result.

    halves  moments over every other sample, to try on one half what was fitted on the other;
            a single one where memory or samples are short
    target  the real weights to round
    reach   the steps to round the target with
    """

    product: Product
    x: QuantParams
    halves: tuple[Moments, ...]
    weights: Array
    target: Array
    reach: Array
    integers: Array
    steps: Array
    bias: Array
    per_channel: bool = True
    dtype: DType = DType.I8

    @cached_property
    def moments(self) -> Moments:
        """Over all samples."""
        return self.halves[0] + self.halves[1] if len(self.halves) == 2 else self.halves[0]

    @cached_property
    def covariance(self) -> Array:
        """Of the input over all samples, [G, K, K]."""
        return self.moments.covariance()

    @cached_property
    def metric(self) -> Array:
        """The covariance to expect of other data, [G, K, K].

        From n rows of K inputs the correlations are the less certain the more there are:
        ``(1 - r) C + r diag(C)`` with ``r = K / (K + n)`` (after Ledoit and Wolf, 2004), and
        ``DAMPING`` (GPTQ).
        """
        found, k = self.covariance, self.product.shape[1]
        share = k / (k + self.moments.count)
        variances = np.diagonal(found, axis1=1, axis2=2)
        spare = DAMPING * np.maximum(variances.mean(axis=1, keepdims=True), LEAST_VARIANCE)
        diagonal = (share * variances + spare)[:, :, None] * np.eye(k)
        return np.asarray((1 - share) * found + diagonal)

    def data_error(self, integers: Array, steps: Array) -> Array:
        """[G, O/G]: mean square of ``y - x @ (steps * integers)`` less its mean, up to a constant
        of the channel.
        """
        w = integers * steps
        pull = 2 * self.moments.cross_covariance()
        return np.asarray((w * (self.covariance @ w - pull)).sum(axis=1))

    def expected_error(self, integers: Array, steps: Array) -> Array:
        """[G, O/G]: ``d' metric d`` for the distance d from the target."""
        distance = integers * steps - self.target
        return np.asarray((distance * (self.metric @ distance)).sum(axis=1))

    def taking(self, integers: Array, steps: Array) -> Layer:
        """The layer with the integers of those channels where they make the smaller error, on
        the data and as expected, and where the accumulator cannot overflow.
        """
        smaller = self.data_error(integers, steps) <= self.data_error(self.integers, self.steps)
        smaller &= self.expected_error(integers, steps) <= self.expected_error(
            self.integers, self.steps
        )
        better = smaller[:, None] & (self.excess(integers, steps, self.bias) <= 1)
        return replace(
            self,
            integers=np.where(better, integers, self.integers),
            steps=np.where(better, steps, self.steps),
        )

    def excess(self, integers: Array, steps: Array, bias: Array) -> Array:
        """[G, 1, O/G]: the largest possible accumulator over what int32 holds."""
        found = accumulator_excess(
            flat(integers).astype(np.int32),
            flat(bias)[0],
            flat(steps)[0] / self.x.scale,
            self.x,
            self.dtype,
        )
        return found.reshape(self.steps.shape)

    def aiming_at(self, target: Array) -> Layer:
        """The layer with another target, and the steps that reach its largest weights; rounded to
        nearest where that is better already.
        """
        bias = self.moments.y_mean[:, None] - self.moments.x_mean[:, None] @ target
        weights = (flat(target) / self.x.scale).astype(np.float32)
        made = quantize_weights(weights, flat(bias)[0], self.x, dtype=self.dtype)
        reach = made.scales.astype(np.float64).reshape(1, 1, -1) * self.x.scale
        moved = replace(self, target=target, reach=self.product.by_group(reach))
        return moved.taking(self.product.by_group(made.weights).astype(np.float64), moved.reach)


def flat(array: Array) -> Array:
    """[G, K, O/G] -> [K, O]"""
    return np.asarray(array.transpose(1, 0, 2)).reshape(array.shape[1], -1)
