"""Transposed convolutions by phases: the same integers, and no products with zeros in between."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, ConvTranspose
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.errors import TypeRuleError
from quantglow.transforms.lowering import lower


def graph_of(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    channels: int,
    quantized: bool,
    **fields: object,
) -> Graph:
    """A transposed convolution with weights of any sign, a scale for each channel, and a bias."""
    random = np.random.default_rng(0)
    weight_shape = (*kernel, shape[3], channels)
    if not quantized:
        x = Input(name="x", tensor=TensorType(DType.F32, shape))
        w = Constant(name="w", value=random.normal(size=weight_shape).astype(np.float32))
        b = Constant(name="b", value=random.normal(size=channels).astype(np.float32))
    else:
        x = Input(name="x", tensor=TensorType(DType.I8, shape, QuantParams.per_tensor(0.05, -7)))
        scales = QuantParams.symmetric(random.uniform(0.002, 0.02, channels), 3)
        codes = random.integers(-127, 128, weight_shape).astype(np.int8)
        w = Constant(name="w", value=codes, element=ElementType(DType.I8, scales))
        b = Constant(name="b", value=random.integers(-900, 900, channels).astype(np.int32))
        fields["out"] = ElementType(DType.I8, QuantParams.per_tensor(0.07, 5))
    node = ConvTranspose(name="r", x=x, w=w, b=b, **fields)  # type: ignore[arg-type]
    return Graph((x,), (("out", node),))


@given(st.data())
def test_phases_give_the_same_integers(data: st.DataObject) -> None:
    def two(low: int, high: int) -> tuple[int, int]:
        return (data.draw(st.integers(low, high)), data.draw(st.integers(low, high)))

    strides, kernel, (h, w) = two(1, 3), two(1, 5), two(1, 4)
    output_padding = tuple(data.draw(st.integers(0, s - 1)) for s in strides)
    shape = (data.draw(st.integers(1, 2)), h, w, data.draw(st.integers(1, 3)))
    channels, quantized = data.draw(st.sampled_from([1, 3, 8, 17])), data.draw(st.booleans())
    fields = {"strides": strides, "pads": (*two(0, 3), *two(0, 3)), "low": -2.0}
    fields["output_padding"] = output_padding
    try:
        graph = graph_of(shape, kernel, channels, quantized, **fields)
    except TypeRuleError:  # the pads left nothing
        return
    (node,) = graph.inputs
    values = np.random.default_rng(1).integers(-128, 128, node.type.shape)
    feeds = {"x": values.astype(node.type.dtype.numpy)}
    (actual,), (expected,) = interpret(lower(graph), feeds), interpret(graph, feeds)
    if quantized:
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("channels", [1, 24])
@pytest.mark.parametrize("kernel", [2, 4])
def test_no_product_is_made_with_zeros_between_pixels(kernel: int, channels: int) -> None:
    graph = graph_of((1, 6, 5, 3), (kernel, kernel), channels, True, strides=(2, 2))
    lowered = lower(graph)
    convs = [n for n in lowered.nodes if isinstance(n, Conv)]
    products = sum(math.prod(n.type.shape) * math.prod(n.w.type.shape[:3]) for n in convs)
    padding = kernel // 2 - 1  # a cell more on each side, where kernels overlap
    cells = (6 + padding) * (5 + padding)
    assert products == cells * kernel**2 * 3 * channels


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("strides", [(1, 1 << 16), (300, 300)])
def test_the_stride_does_not_decide_how_many_nodes_there_are(
    strides: tuple[int, int], quantized: bool
) -> None:
    """A file of 2 KB with a stride of 65,536 took minutes to compile."""
    graph = graph_of((1, 1, 1, 9), (1, 1), 4, quantized, strides=strides)
    lowered = lower(graph)
    assert len(lowered.nodes) < 40
    feeds = {"x": np.ones((1, 1, 1, 9), np.int8 if quantized else np.float32)}
    (actual,), (expected,) = interpret(lowered, feeds), interpret(graph, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=0 if quantized else 1e-3)


@pytest.mark.parametrize("channels", [1, 24])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 1), (3, 3), (3, 2), (5, 4)])
def test_infinities_reach_results_of_their_taps_only(
    kernel: tuple[int, int], channels: int
) -> None:
    graph = graph_of((1, 4, 5, 2), kernel, channels, False, strides=(2, 2))
    x = np.random.default_rng(2).normal(size=(1, 4, 5, 2)).astype(np.float32)
    x[0, 1, 2, 0] = -np.inf
    (actual,), (expected,) = interpret(lower(graph), {"x": x}), interpret(graph, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)
