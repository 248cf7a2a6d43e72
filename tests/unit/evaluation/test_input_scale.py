"""Warnings about the scale of inputs, also where no statistics of training are left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import quantglow as qg
from quantglow.cli.demo import EXAMPLES, Example, mnist
from quantglow.evaluation.sample_checks import out_of_scale
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Concat, Conv, Relu, Slice, Softmax
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.support.builder import Builder
from tests.unit.evaluation.test_data_warnings import BYTES

Feeds = dict[str, Array]


def folded(example: Example) -> Graph:
    """The network without BatchNormalization in its first layers."""
    shape = (1, *example.calibration.shape[1:])
    return optimize(qg.import_model(example.model, {example.input_name: shape}))


def warned(example: Example, change: Callable[[Array], Array]) -> list[str]:
    samples = [{example.input_name: change(x[None])} for x in example.calibration[:8]]
    return out_of_scale(folded(example), samples)


@pytest.mark.slow_variants
@pytest.mark.parametrize("make", EXAMPLES)
@pytest.mark.parametrize("factor", [1, 0.5, 0.25])
def test_right_inputs_give_no_warning(make: Callable[[], Example], factor: float) -> None:
    assert not warned(make(), lambda x: x * np.float32(factor))


@pytest.mark.parametrize("make", EXAMPLES)
def test_bytes_give_a_warning(make: Callable[[], Example]) -> None:
    example = make()
    (warning,) = warned(example, BYTES[example.input_name])
    assert "much larger than in training" in warning


@pytest.mark.parametrize("make", EXAMPLES)
def test_inputs_divided_once_more_give_a_warning(make: Callable[[], Example]) -> None:
    (warning,) = warned(make(), lambda x: x / 255)
    assert "the inputs hardly matter" in warning


def plain(b: Builder, before: Callable[[Node], Node] = lambda x: x) -> Graph:
    """Convolutions with random biases that oppose nothing."""
    x = before(b.input(1, 3, 12, 12))
    for _ in range(4):
        x = b.make(Relu, x=b.conv(x, 16, kernel=3))
    return optimize(b.graph(x))


def images(scale: float) -> list[Feeds]:
    rng = np.random.default_rng(3)
    return [{"input1": (scale * rng.random((1, 3, 12, 12))).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("scale", [1, 255])
def test_small_biases_are_no_sign_without_normalization(scale: float) -> None:
    """Networks without it are trained on bytes, too."""
    assert not out_of_scale(plain(Builder()), images(scale))


def focused(b: Builder, x: Node) -> Node:
    """Every second pixel of every second row, four times, as YOLOX begins."""
    parts = tuple(
        b.make(Slice, x=x, starts=(0, 0, top, left), sizes=(1, 3, 6, 6), steps=(1, 1, 2, 2))
        for top in (0, 1)
        for left in (0, 1)
    )
    return b.make(Concat, parts=parts, axis=1)


def test_inputs_that_are_cut_and_joined_are_inputs() -> None:
    b = Builder()
    (warning,) = out_of_scale(plain(b, lambda x: focused(b, x)), images(1e-4))
    assert "hardly matter" in warning


def test_values_of_other_operators_have_no_scale_of_the_inputs() -> None:
    b = Builder()
    graph = plain(b, lambda x: b.make(Softmax, x=x))
    assert not out_of_scale(graph, images(1e-4))


def test_a_layer_without_bias_gives_no_warning() -> None:
    assert not out_of_scale(optimize(unbiased(Builder())), images(1e-4))


def unbiased(b: Builder) -> Graph:
    x, w = b.input(1, 3, 12, 12), b.drawn(3, 3, 3, 16)
    return b.graph(b.spatial(Conv, x, w=w, b=None, pads=(1, 1, 1, 1)))


def test_the_report_of_a_folded_network_warns() -> None:
    example = mnist()
    data = [{example.input_name: 255 * x[None]} for x in example.calibration[:12]]
    report = qg.quantize_and_compile(folded(example), data, progress=False, num_threads=1).report
    assert "Warning: the inputs are much larger than in training" in str(report)
    assert report.headline.endswith("But see the warnings.")


@pytest.mark.parametrize("channels", [1, 16])
def test_channels_of_infinite_bias_count_for_nothing(channels: int) -> None:
    b = Builder()
    biases = b.random.normal(size=16).astype(np.float32)
    biases[:channels] = -np.inf
    w, x = b.drawn(3, 3, 3, 16), b.input(1, 12, 12, 3)
    layer = b.make(Conv, x=x, w=w, b=b.constant(biases))
    samples = [{x.name: b.random.normal(size=(1, 12, 12, 3)).astype(np.float32)}]
    assert not out_of_scale(b.graph(layer), samples)
