"""The data that a layer is recovered from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantglow.interpreter.stacks import Stacks
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.native import NativeOps, computing_with
from quantglow.ir.ops.windows import Images, conv2d
from quantglow.profiling import profile
from quantglow.quantization.options import RECOVERIES, QuantizationConfig
from quantglow.quantization.quantizer import quantize
from quantglow.quantization.rounding import layer_data
from quantglow.quantization.rounding.layer import Layer, LayerProduct
from quantglow.quantization.rounding.layer_data import (
    LayerData,
    missing_sums,
    plain_layer,
    real_values,
)
from quantglow.quantization.rounding.moments import Statistics
from quantglow.quantization.rounding.sampling import SampleEvaluator, SampleValues
from quantglow.runtime.native.array_ops import array_kernels
from quantglow.support.arrays import Array
from tests.unit.quantization.quantization_networks import conv, graph_of, image, samples_for

PLAIN = QuantizationConfig(recovery=(), equalization=(), calibrate_method="minmax")
BARE = {"low": -np.inf, "high": np.inf}


def layers(has_residual: bool = False, **options: Any) -> Graph:
    """Two layers; the second one, ``y``, is under test."""
    x = image(4, 6)
    first = conv("first", x, 4, low=0.0)
    if has_residual:
        options["residual"] = first
    return graph_of(conv("y", first, 4, **options), inputs=(x,))


def data_of(
    graph: Graph, count: int = 6, techniques: Collection[str] = RECOVERIES, offset: float = 0.0
) -> LayerData:
    """The data of ``y``, which should give the sums of its real weights on the rounded input, and
    ``offset``.
    """
    samples = samples_for(graph, count)
    profiled = profile(graph, samples, progress=False)
    int8 = quantize(graph, profiled, PLAIN)
    evaluator = SampleEvaluator(int8, samples)
    values: dict[Node, SampleValues] = {}
    for node in int8.nodes:
        values[node] = evaluator.values(node, [values[operand] for operand in node.operands])
    layer, real = int8.by_name("y"), replace(graph.by_name("y"), **BARE)

    def sums(sample: int) -> Array:
        pairs = zip(real.operands, layer.operands, strict=True)
        inputs = (
            item.value
            if isinstance(item, Constant)
            else real_values(other, values[other].of(sample))
            for item, other in pairs
        )
        return real.evaluate(*inputs) + np.float32(offset)

    operands = [values[operand] for operand in layer.operands]
    stacks = Stacks([sums(sample) for sample in range(count)], evaluator.layout(1))
    return LayerData(layer, operands, evaluator, stacks, techniques, count)


def layer_of(graph: Graph, **options: Any) -> Layer:
    data, real = data_of(graph, **options), graph.by_name("y")
    return plain_layer(data.node, real, Statistics(data.moments(real)), per_channel=True)


def test_a_layer_begins_with_weights_rounded_to_nearest() -> None:
    layer = layer_of(layers())
    assert np.abs(layer.integers - layer.target).max() <= 0.5 + 1e-4


def test_every_row_of_every_sample_counts() -> None:
    assert layer_of(layers(), count=6).moments.count == 6 * 6 * 6


@pytest.mark.parametrize("has_residual", [False, True])
def test_nothing_is_missing_where_the_real_weights_give_the_result(has_residual: bool) -> None:
    moments = layer_of(layers(has_residual)).moments
    np.testing.assert_allclose(moments.missing_mean, 0, atol=1e-4)


def test_native_code_gives_the_sums_of_the_real_weights_of_a_dense_layer() -> None:
    """Bit for bit, so that what is missing does not depend on the processor."""
    graph = layers()
    with computing_with(array_kernels()):
        data = data_of(graph)
        node, real = data.node, graph.by_name("y")
        weights, missing = real.w.value * np.float32(node.x.type.params.scale), np.zeros(4)
        for sample, expected in enumerate(data.target.arrays):
            x = data.operands[0].of(sample) - np.float32(node.x.type.params.zero_point)
            images, strides, _ = LayerProduct(node).thin_rows(x, 1, 0)
            now = conv2d(Images.of(images), weights, strides, (1, 1), 1) + real.b.value
            missing += (expected - now).sum(axis=(0, 1, 2), dtype=np.float64)
        moments = Statistics(data.moments(real)).moments
    np.testing.assert_allclose(moments.missing_sum[0], missing, rtol=1e-9, atol=1e-12)


def test_an_offset_of_the_wanted_result_is_the_mean_that_is_missing() -> None:
    moments = layer_of(layers(), offset=0.25).moments
    np.testing.assert_allclose(moments.missing_mean, 0.25, atol=1e-4)


def test_sums_that_a_bound_makes_equal_miss_nothing() -> None:
    moments = layer_of(layers(low=1e3), offset=0.25).moments
    np.testing.assert_array_equal(moments.missing_mean, 0)


@pytest.mark.parametrize(
    ("techniques", "count", "halves"),
    [(RECOVERIES, 6, 2), (RECOVERIES, 3, 1), (("round-weights",), 6, 1)],
)
def test_moments_are_in_halves_if_weights_are_adapted_on_enough_samples(
    techniques: Collection[str], count: int, halves: int
) -> None:
    layer = layer_of(layers(), count=count, techniques=techniques)
    assert len(layer.statistics.halves) == halves


def test_correcting_biases_takes_no_second_moments() -> None:
    assert not layer_of(layers(), techniques=("correct-bias",)).moments.second


def test_second_moments_beyond_the_limit_of_memory_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layer_data, "GRAM_NBYTES", 36 * 36 * 8 - 1)
    assert not layer_of(layers()).moments.second


@pytest.mark.parametrize("native", [array_kernels(), None], ids=["native", "NumPy"])
@pytest.mark.parametrize("bounds", [(0.0, np.inf), (-1.0, 1.0), (-np.inf, np.inf)])
def test_nothing_is_missing_where_bounds_make_the_same_of_both_sums(
    bounds: tuple[float, float], native: NativeOps | None
) -> None:
    low, high = bounds
    node = conv("c", image(), 4, low=low, high=high)
    values = np.array([-np.inf, -2, -1, -0.0, 0, 0.5, 1, 2, np.inf], np.float32)
    reference, now = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    with np.errstate(invalid="ignore"), computing_with(native):
        expected = reference - now
        expected[np.maximum(reference, now) <= low] = 0
        expected[np.minimum(reference, now) >= high] = 0
        np.testing.assert_array_equal(missing_sums(node, reference, now), expected)
