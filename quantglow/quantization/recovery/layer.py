"""What the techniques know and decide of one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.quantization.params import accumulator_excess, quantize_weights
from quantglow.quantization.recovery.moments import Moments, Statistics
from quantglow.quantization.recovery.products import Product
from quantglow.types import Array, DType, QuantParams


@dataclass(frozen=True)
class Errors:
    """Of each channel, [G, O/G].

    data      mean square of ``y - x @ (steps * integers)`` less its mean, over that of the target
    expected  ``d' metric d`` for the distance d from the target
    """

    data: Array
    expected: Array

    def not_above(self, other: Errors) -> Array:
        """bool [G, O/G]: where neither is larger than the other's."""
        return np.asarray((self.data <= other.data) & (self.expected <= other.expected))

    def where(self, chosen: Array, other: Errors) -> Errors:
        """These errors where chosen, the other's elsewhere."""
        return Errors(
            np.where(chosen, self.data, other.data),
            np.where(chosen, self.expected, other.expected),
        )


@dataclass(frozen=True)
class Layer:
    """One quantized product ``y = x @ (steps * integers) + bias`` and what it should give.

    x       its input, integers of ``dtype``, with the zero point taken away
    y       the float model's result, less what is added to the product (see ``walk``)
    All arrays by group: weights [G, K, O/G], steps [G, 1, O/G] and bias [G, 1, O/G] in units of
    the result.

    statistics  of x and y over the calibration data
    target      the real weights to round
    reach       the steps to round the target with
    known       the product of covariance and target, and the errors of these integers, once they
                have been computed
    """

    product: Product
    x: QuantParams
    statistics: Statistics
    weights: Array
    target: Array
    reach: Array
    integers: Array
    steps: Array
    bias: Array
    per_channel: bool = True
    dtype: DType = DType.I8
    known: tuple[Array, Errors] | None = None

    @property
    def moments(self) -> Moments:
        """Over all samples."""
        return self.statistics.moments

    def errors(self, integers: Array, steps: Array, target_product: Array) -> Errors:
        """Of other integers, with ``covariance @ target``.

        The distance from the target is small, so that its product needs float32 only.
        """
        found, distance = self.statistics, integers * steps - self.target
        product = found.covariance32 @ distance.astype(np.float32)
        slope = 2 * (target_product - found.cross_covariance)
        spread = found.trust * product + found.spare * distance
        return Errors(
            np.asarray((distance * (product + slope)).sum(axis=1)),
            np.asarray((distance * spread).sum(axis=1)),
        )

    def taking(self, integers: Array, steps: Array) -> Layer:
        """The layer with the integers of those channels where they make the smaller error, on
        the data and as expected, and where the accumulator cannot overflow.
        """
        product, before = self.known or self._computed()
        after = self.errors(integers, steps, product)
        fits = (self.excess(integers, steps, self.bias) <= 1)[:, 0]
        better = after.not_above(before) & fits
        return replace(
            self,
            integers=np.where(better[:, None], integers, self.integers),
            steps=np.where(better[:, None], steps, self.steps),
            known=(product, after.where(better, before)),
        )

    def _computed(self) -> tuple[Array, Errors]:
        product = self.statistics.covariance @ self.target
        return product, self.errors(self.integers, self.steps, product)

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
        moved = replace(self, target=target, reach=self.product.by_group(reach), known=None)
        return moved.taking(self.product.by_group(made.weights).astype(np.float64), moved.reach)


def flat(array: Array) -> Array:
    """[G, K, O/G] -> [K, O]"""
    return np.asarray(array.transpose(1, 0, 2)).reshape(array.shape[1], -1)
