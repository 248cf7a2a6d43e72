"""Layer to be rounded: its matrix product (im2col), its target, and its integers so far.

Convolutions and matrix products are ``columns @ matrix``, one product for each group.  ``columns``
[G, rows, K] holds one window of the input in each row, ``matrix`` [G, K, O/G] the weights; K runs
over (KH, KW, C/G), as in the HWIO weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from quantglow.ir.ops import Conv, ConvTranspose
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import pad_or_crop, spread_out
from quantglow.ir.ops.windows import Pair, fixed_pads
from quantglow.ir.types import DType, QuantParams
from quantglow.quantization.plan.params import accumulator_excess, quantize_weights
from quantglow.quantization.rounding.moments import Moments, Statistics
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

BAND_NBYTES = 2**25
"""Maximum size of the columns of one band of output rows, in bytes."""

MANY_OUTPUTS = 64
"""Minimum number of channels for two threads."""

MAX_CROSS = 1e12
"""Maximum cross covariance, in units (weights are at most 127 of them): float32 cannot hold squared
errors beyond it."""


@dataclass(frozen=True)
class LayerProduct:
    """The way a Conv, ConvTranspose or Gemm reads its input and stores its weights."""

    node: Contraction

    @property
    def group(self) -> int:
        return self.node.group if isinstance(self.node, Conv | ConvTranspose) else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, K, O/G)"""
        outputs = int(self.node.w.type.shape[-1])
        return self.group, int(self.node.w.type.size) // outputs, outputs // self.group

    def matrix(self, weights: Array) -> Array:
        """[G, K, O/G] from weights in the node's layout."""
        if isinstance(self.node, ConvTranspose):
            weights = weights[::-1, ::-1]
        return self.by_group(weights)

    def weights(self, matrix: Array) -> Array:
        """Weights in the node's layout from [G, K, O/G]; the inverse of ``matrix``."""
        weights = matrix.transpose(1, 0, 2).reshape(self.node.w.type.fixed_shape)
        if isinstance(self.node, ConvTranspose):
            weights = weights[::-1, ::-1]
        return np.ascontiguousarray(weights)

    def by_group(self, array: Array) -> Array:
        """[..., O] -> [G, rows, O/G]"""
        group, _, outputs = self.shape
        return np.ascontiguousarray(array.reshape(-1, group, outputs).transpose(1, 0, 2))

    def bands(
        self, x: Array, *results: Array, every: int = 1, first: int = 0
    ) -> Iterator[tuple[Array, ...]]:
        """float32 columns of ``x``, and for each array in the result's shape its rows by group.

        The zero point of ``x`` is already subtracted, so that padding is 0.  Images contribute one
        of ``every`` rows of the result, beginning at ``first`` modulo ``every``.
        """
        if not isinstance(self.node, Conv | ConvTranspose):
            yield (x.astype(np.float32)[None], *(self.by_group(r) for r in results))
            return
        windows = self._windows(x, every)
        start = first % max(min(every, windows.shape[1]), 1)
        windows = windows[:, start::every]
        results = tuple(r[:, start::every] for r in results)
        n, oh, ow = windows.shape[:3]
        row_nbytes = 8 * n * ow * self.group * self.shape[1]
        step = max(1, BAND_NBYTES // row_nbytes)
        for start in range(0, oh, step):
            part = slice(start, start + step)
            yield self._columns(windows[:, part]), *(self.by_group(r[:, part]) for r in results)

    def thin_rows(self, x: Array, every: int, first: int) -> tuple[Array, Pair, int]:
        """Padded float32 images and the strides with which a Conv gives one of ``every`` lines of
        its result, and the first one of these; ``first`` modulo ``every``.
        """
        node = self.node
        assert isinstance(node, Conv)
        top, left, bottom, right = fixed_pads(node.pads)
        padded = pad_or_crop(np.asarray(x, np.float32), (top, left), (bottom, right))
        start = first % max(min(every, int(node.type.shape[1])), 1)
        strides = (node.strides[0] * every, node.strides[1])
        return np.ascontiguousarray(padded[:, start * node.strides[0] :]), strides, start

    def _windows(self, x: Array, every: int) -> Array:
        """View [N, OH, OW, C, KH, KW] of the padded input; one of ``every`` rows will be read."""
        node = self.node
        assert isinstance(node, Conv | ConvTranspose)
        strides = (1, 1)
        if isinstance(node, ConvTranspose):
            padded = pad_or_crop(spread_out(x, node.strides), *node.equivalent_pads())
        else:
            top, left, bottom, right = fixed_pads(node.pads)
            padded, strides = pad_or_crop(x, (top, left), (bottom, right)), node.strides
        kh, kw = node.w.type.fixed_shape[:2]
        if self.group == padded.shape[-1] and every <= kh:
            # Channel by channel in memory, so that windows are copied by rows of pixels.
            padded = np.ascontiguousarray(padded.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
        dh, dw = node.dilations
        span = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)
        windows = sliding_window_view(padded, span, axis=(1, 2))
        return windows[:, :: strides[0], :: strides[1], :, ::dh, ::dw]

    def _columns(self, windows: Array) -> Array:
        n, oh, ow, c, kh, kw = windows.shape
        if self.group == c:
            by_offset = np.ascontiguousarray(windows.transpose(3, 4, 5, 0, 1, 2), np.float32)
            return by_offset.reshape(c, kh * kw, -1).transpose(0, 2, 1)
        grouped = windows.reshape(n, oh, ow, self.group, c // self.group, kh, kw)
        moved = grouped.transpose(3, 0, 1, 2, 5, 6, 4)
        return np.ascontiguousarray(moved, np.float32).reshape(self.group, n * oh * ow, -1)


@dataclass(frozen=True)
class RoundingErrors:
    """Errors of each channel, float64 [G, O/G], in units squared.

    data      mean square of ``y - x @ (steps * integers)`` less its mean, relative to the target's
    expected  ``d' metric d`` for the distance d from the target
    """

    data: Array
    expected: Array

    def not_above(self, other: RoundingErrors) -> Array:
        """bool [G, O/G]: whether neither error is larger than the other's."""
        return np.asarray((self.data <= other.data) & (self.expected <= other.expected))

    def where(self, chosen: Array, other: RoundingErrors) -> RoundingErrors:
        """These errors where chosen, the other's elsewhere."""
        return RoundingErrors(
            np.where(chosen, self.data, other.data),
            np.where(chosen, self.expected, other.expected),
        )


@dataclass(frozen=True)
class Layer:
    """One quantized product ``y = x @ (steps * integers) + bias`` and its target.

    x           its input, integers of ``dtype``, with the zero point taken away
    y           the float model's result, less the terms added to the product (see ``layer_data``)
    statistics  of x and of ``y - (x @ w + b)``, w and b the real ones, over the calibration data

    Arrays are by group.  float32 [G, K, O/G]:

    weights     the real weights, in units
    target      the real weights to round, in units
    integers    the rounded weights

    float64 [G, 1, O/G], in units of the result:

    unit        the unit of weights and target, about the size of a step
    steps       the steps of the integers
    reach       the steps with which to round the target
    real_bias   the bias of the float layer
    bias        the bias of the quantized layer

    slope       [G, K, O/G]: the gradient of the error on the data by the weights, twice the
                covariance of the input and the target's error; None: not computed yet
    error_sums  the errors of these integers; None: not computed yet
    """

    product: LayerProduct
    x: QuantParams
    statistics: Statistics
    weights: Array
    target: Array
    integers: Array
    unit: Array
    steps: Array
    reach: Array
    real_bias: Array
    bias: Array
    per_channel: bool = True
    dtype: DType = DType.I8
    slope: Array | None = None
    error_sums: RoundingErrors | None = None

    @property
    def moments(self) -> Moments:
        """The moments over all samples."""
        return self.statistics.moments

    def cross(self, moments: Moments) -> Array:
        """float32 [G, K, O/G], in units: the covariance of the input and the error of the weights.

        0 in channels that are tiny beside their error: no weights of theirs make up for it.
        """
        cross = moments.cross_covariance() / self.unit
        hopeless = np.abs(cross).max(axis=1, keepdims=True) > MAX_CROSS
        return np.where(hopeless, 0.0, cross).astype(np.float32)

    def in_units(self, integers: Array, steps: Array) -> Array:
        """``steps * integers``, float32."""
        return np.asarray(integers * (steps / self.unit).astype(np.float32))

    def rounding(self, steps: Array) -> Array:
        """The target in these steps, float32."""
        return np.asarray(self.target * (self.unit / steps).astype(np.float32))

    def errors(self, integers: Array, steps: Array, slope: Array) -> RoundingErrors:
        """The errors of other integers."""
        statistics, distance = self.statistics, self.in_units(integers, steps) - self.target

        # The error on the data is a parabola: that of target + d is d' C d + slope' d larger.
        def of_outputs(part: slice) -> tuple[Array, Array]:
            apart = distance[..., part]
            product = statistics.covariance @ apart
            data = _sums(apart * (product + slope[..., part]))
            spare = _sums(statistics.spare * np.square(apart))
            return data, statistics.trust * _sums(apart * product) + spare

        parts = each(of_outputs, halves(distance.shape[-1]))
        data, expected = (np.concatenate(sums, axis=1) for sums in zip(*parts, strict=True))
        return RoundingErrors(data, expected)

    def take_integers(self, integers: Array, steps: Array) -> Layer:
        """The layer with these integers in the channels where they make the smaller error, on the
        data and as expected, and where the accumulator cannot overflow.
        """
        slope = self._slope() if self.slope is None else self.slope
        before = self.error_sums or self.errors(self.integers, self.steps, slope)
        after = self.errors(integers, steps, slope)
        fits = (self.excess(integers, steps, self.bias) <= 1)[:, 0]
        better = after.not_above(before) & fits
        return replace(
            self,
            integers=np.where(better[:, None], integers, self.integers),
            steps=np.where(better[:, None], steps, self.steps),
            slope=slope,
            error_sums=after.where(better, before),
        )

    def _slope(self) -> Array:
        moved = self.target - self.weights
        product = self.statistics.covariance @ moved if moved.any() else moved
        return 2 * (product - self.cross(self.moments))

    def excess(self, integers: Array, steps: Array, bias: Array) -> Array:
        """[G, 1, O/G]: the largest possible accumulator over the maximum of int32."""
        scales = flat(steps)[0] / self.x.scale
        excess = accumulator_excess(flat(integers), flat(bias)[0], scales, self.x, self.dtype)
        return excess.reshape(self.steps.shape)

    def shifted_bias(self, weights: Array) -> Array:
        """The bias with which weights (float32, in units) make no mean error."""
        means = self.moments.x_mean.astype(np.float32)[:, None] @ (weights - self.weights)
        return np.asarray(self.real_bias + self.moments.missing_mean[:, None] - means * self.unit)

    def retarget(self, target: Array) -> Layer:
        """The layer with another target, and the steps that reach its largest weights.  It is
        rounded to nearest in the channels where that is better already.
        """
        weights = (flat(target) * (flat(self.unit)[0] / self.x.scale)).astype(np.float32)
        bias = flat(self.shifted_bias(target))[0]
        quantized = quantize_weights(weights, bias, self.x, dtype=self.dtype)
        reach = quantized.scales.astype(np.float64).reshape(1, 1, -1) * self.x.scale
        by_group = self.product.by_group
        moved = replace(self, target=target, reach=by_group(reach), slope=None, error_sums=None)
        return moved.take_integers(by_group(quantized.weights).astype(np.float32), moved.reach)


def _sums(values: Array) -> Array:
    """Sums over the inputs, in float64: nearly equal channels must not change places."""
    return np.asarray(values.sum(axis=1, dtype=np.float64))


def halves(outputs: int) -> list[slice]:
    """The channels of a group, in two parts if there are many."""
    if outputs < MANY_OUTPUTS:
        return [slice(0, outputs)]
    return [slice(0, outputs // 2), slice(outputs // 2, outputs)]


def flat(array: Array) -> Array:
    """[G, K, O/G] -> [K, O]"""
    return np.asarray(array.transpose(1, 0, 2)).reshape(array.shape[1], -1)
