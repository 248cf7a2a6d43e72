"""The data that a layer is rounded against: its moments over all calibration samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.interpreter.stacks import Stacks
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Conv
from quantglow.ir.ops.arithmetic import dequantize, is_integer
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.native import Ends, NativeOps, native_ops
from quantglow.ir.ops.windows import Images, conv2d, products
from quantglow.quantization.rounding.layer import Layer, LayerProduct
from quantglow.quantization.rounding.moments import Moments, Statistics
from quantglow.quantization.rounding.sampling import (
    MIN_ROWS_PER_INPUT,
    SampleEvaluator,
    SampleValues,
    row_stride,
    samples_together,
)
from quantglow.quantization.rounding.techniques import adaptable
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

GRAM_NBYTES = 2**24
"""Maximum size of the second moments of one layer, in bytes.  In layers with larger ones only the
bias is corrected."""

MIN_TO_SPLIT = 4
"""Minimum number of samples to hold back one half of."""


@dataclass(frozen=True)
class LayerData:
    """An int8 layer, the values of its operands, and the sums that it should give.

    ``target``: the float model's sums before activation and bounds.
    ``techniques``: those that will improve the layer.  ``total``, ``first``: number of all samples,
    and of those before these, an even one, where these are a part of them.
    """

    node: Any
    operands: Sequence[SampleValues]
    evaluator: SampleEvaluator
    target: Stacks
    techniques: Collection[str]
    total: int
    first: int = 0

    def moments(self, real: Any) -> tuple[Moments, ...]:
        """The moments over all samples, of both halves side by side; ``real``: the float node.

        They are added up where there is no need to try on one half what was fitted on the other.
        """
        terms = _real_terms(self.node, real)
        product, samples = LayerProduct(self.node), range(len(self.evaluator.samples))
        group, k, _ = product.shape
        size = sum(array.size for array in self.target.arrays) * self.total // len(samples)
        rows = size // self.node.type.shape[-1]
        stride = row_stride(rows, group, k, self.total)
        enough = group * k * k * 8 <= GRAM_NBYTES and rows >= MIN_ROWS_PER_INPUT * k
        second = set(self.techniques) != {"correct-bias"} and enough
        columns_nbytes = 4 * rows // stride * group * k // self.total
        together = samples_together(self.node, size // self.total, columns_nbytes)
        if stride > 1:
            together = 1  # Each sample contributes other lines, since lines, as of text, differ.

        native = native_ops()
        is_depthwise = isinstance(self.node, Conv) and self.node.depthwise
        takes_native = second and is_depthwise and self.node.x.type.dtype.nbytes == 1

        def count(half: range) -> Moments:
            parts = self.evaluator.parts(half, together)
            if native is not None and takes_native:
                return self._depthwise(native, terms, parts, stride)
            moments = Moments.zeros(product.shape, second)
            for first, part in enumerate(parts, self.first // 2):
                self._add(moments, terms, part, stride, first)
            return moments

        halves = tuple(each(count, [samples[::2], samples[1::2]]))
        split = "adapt-weights" in self.techniques and adaptable(rows // stride // 2, k)
        if second and split and self.total >= MIN_TO_SPLIT:
            return halves
        return (halves[0] + halves[1],)

    def _add(
        self,
        moments: Moments,
        terms: tuple[Array, Array],
        part: range,
        stride: int,
        first: int,
    ) -> None:
        """Count some samples: the int8 input, and the float results less those of the real weights
        and bias (``terms``, by group) and less the int8 residual.
        """
        node, x, others = self._read_part(part)
        weights, bias = terms
        for columns, y, *residuals in LayerProduct(node).bands(
            x, *others, every=stride, first=first
        ):
            now = products(columns, weights)
            for term in (bias, *residuals):
                now += term
            moments.add(columns, missing_sums(node, y, now))

    def _read_part(self, part: range) -> tuple[Any, Array, tuple[Array, ...]]:
        """The layer at the shapes of some samples; their int8 inputs less the zero point, float32;
        the sums that are wanted and the real values of the residual, if there is one.
        """
        node: Any = self.evaluator.counterpart(self.node, part[0])
        arrays = self.evaluator.arrays(node, self.operands, part)
        values = dict(zip(node.operands, arrays, strict=True))
        x = np.subtract(values[node.x], node.x.type.params.zero_point, dtype=np.float32)
        sums = self.target.stack(part)
        if isinstance(node, Conv) and node.residual is not None:
            return node, x, (sums, real_values(node.residual, values[node.residual]))
        return node, x, (sums,)

    def _depthwise(
        self,
        native: NativeOps,
        terms: tuple[Array, Array],
        parts: Sequence[range],
        stride: int,
    ) -> Moments:
        """The moments of a depthwise layer over some parts, by native code."""
        kernel, channels = self.node.w.type.shape[:2], self.node.w.type.shape[-1]
        product = LayerProduct(self.node)
        weights, bias = product.weights(terms[0]), terms[1].reshape(-1)
        ends = Ends(bias)
        sums, count = native.no_moments(kernel, channels), 0
        for first, part in enumerate(parts, self.first // 2):
            node, x, others = self._read_part(part)
            images, strides, start = LayerProduct(node).thin_rows(x, stride, first)
            y, *residuals = (np.ascontiguousarray(other[:, start::stride]) for other in others)
            now = conv2d(Images.of(images), weights, strides, node.dilations, node.group, ends=ends)
            for residual in residuals:
                now += residual
            missing = missing_sums(node, y, now)
            native.add_moments(sums, images, missing, kernel, strides, node.dilations)
            count += missing.size // channels
        moments = Moments.zeros(product.shape)
        moments.add_products(count, native.select_products(sums, kernel, channels))
        return moments


def _real_terms(node: Any, real: Any) -> tuple[Array, Array]:
    """The real weights and bias of a layer by group, for an input in steps; float32."""
    weights = LayerProduct(node).matrix(real.w.value * np.float32(node.x.type.params.scale))
    return weights, real_bias(node, real).astype(np.float32)


def real_bias(node: Any, real: Any) -> Array:
    """The real bias of a layer, float64 [G, 1, O/G]."""
    outputs = node.type.shape[-1]
    bias = np.zeros((1, outputs)) if real.b is None else real.b.value.reshape(1, outputs)
    return LayerProduct(node).by_group(bias.astype(np.float64))


def plain_layer(node: Any, real: Any, statistics: Statistics, per_channel: bool) -> Layer:
    """The layer as plain rounding left it; ``real`` is the float node."""
    product, x = LayerProduct(node), node.x.type.params
    weights, bias = _real_terms(node, real)[0], real_bias(node, real)
    scales = np.asarray(node.w.type.params.scales) * x.scale
    steps = product.by_group(np.broadcast_to(scales, (1, node.type.shape[-1])))
    in_steps = weights / steps.astype(np.float32)
    return Layer(
        product=product,
        x=x,
        statistics=statistics,
        weights=in_steps,
        target=in_steps,
        integers=product.matrix(node.w.value.astype(np.float32)),
        unit=steps,
        steps=steps,
        reach=steps,
        real_bias=bias,
        bias=bias,
        per_channel=per_channel,
        dtype=node.x.type.dtype,
    )


def real_values(node: Node, value: Array) -> Array:
    """The real numbers that a value of the node stands for."""
    return dequantize(value, node.type.params) if is_integer(node.type) else value


def missing_sums(node: Contraction, target: Array, now: Array) -> Array:
    """``target - now``, in the place of ``now``; 0 where bounds or activation give the same result
    for both.  float32 arrays of one shape, ``now`` contiguous.
    """
    low, high = map(np.float32, node.live)
    if (native := native_ops()) is not None:
        native.missing_sums(np.ascontiguousarray(target), now, float(low), float(high))
        return now
    below = (target <= low) & (now <= low)
    above = (target >= high) & (now >= high)
    np.subtract(target, now, out=now)
    now[below | above] = 0
    return now
