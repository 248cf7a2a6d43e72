"""Taps that see nothing but padding are left out: the same integers from fewer products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.types import f32
from quantglow.transforms.lowering.trimming import cut_padding_taps
from tests.generators.quantized_graphs import convolutions
from tests.support.equality import assert_equal_values


@pytest.mark.slow
@given(convolutions.cases())
def test_the_integers_stay(case: convolutions.Case) -> None:
    graph, feeds = convolutions.integers(case)
    cut = cut_padding_taps(graph)
    cut.verify()
    assert cut_padding_taps(cut) is cut
    assert_equal_values(interpret(cut, feeds), interpret(graph, feeds))


def pyramid(size: int, dilation: int, stride: int = 1, weight: float = 1.0) -> Graph:
    """A 3x3 convolution of a square image that keeps its size, as in DeepLab."""
    x = Input(name="x", tensor=f32(1, size, size, 2))
    w = Constant(name="w", value=np.full((3, 3, 2, 4), weight, np.float32))
    pads, dilations = (dilation,) * 4, (dilation, dilation)
    conv = Conv(name="y", x=x, w=w, pads=pads, dilations=dilations, strides=(stride, stride))
    return Graph((x,), (("y", conv),))


@pytest.mark.parametrize(
    ("size", "dilation", "stride", "kernel", "pad"),
    [
        (33, 36, 1, 1, 0),
        (33, 33, 1, 1, 0),
        (33, 32, 1, 3, 32),
        (8, 9, 3, 1, 0),
        (8, 6, 4, 2, 6),
    ],
)
def test_taps_are_kept_that_see_a_pixel(
    size: int, dilation: int, stride: int, kernel: int, pad: int
) -> None:
    ((_, conv),) = cut_padding_taps(pyramid(size, dilation, stride)).outputs
    assert isinstance(conv, Conv)
    assert conv.w.type.shape == (kernel, kernel, 2, 4)
    assert max(conv.pads) == pad


def test_no_padding_becomes_negative() -> None:
    x = Input(name="x", tensor=f32(1, 2, 1, 1))
    w = Constant(name="w", value=np.arange(1, 3, dtype=np.float32).reshape(2, 1, 1, 1))
    conv = Conv(name="y", x=x, w=w, pads=(2, 0, 1, 0), dilations=(2, 1))
    graph, feeds = (
        Graph((x,), (("y", conv),)),
        {"x": np.array([3, 5], np.float32).reshape(1, 2, 1, 1)},
    )
    cut = cut_padding_taps(graph)
    assert all(pad >= 0 for _, node in cut.outputs if isinstance(node, Conv) for pad in node.pads)
    assert_equal_values(interpret(cut, feeds), interpret(graph, feeds))


def test_a_convolution_of_infinite_weights_stays() -> None:
    graph = pyramid(5, 6, weight=np.inf)
    assert cut_padding_taps(graph) is graph
