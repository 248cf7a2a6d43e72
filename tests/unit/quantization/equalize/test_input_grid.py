"""Inputs that were made of 8-bit numbers are rounded on their own grid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Concat, Conv, Quantize, Transpose
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.quantization.decisions import from_json, to_json
from quantglow.quantization.equalize.input_grid import LEVELS, align_inputs, input_grids
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.plan import make_plan
from quantglow.quantization.quantizer import quantize, quantize_for_all_shapes
from quantglow.quantization.search.fake_quantization import relative_noise
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.trials import Candidate
from quantglow.support.arrays import Array
from quantglow.transforms.split_batch import split_batch
from tests.support.effort import moderate
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import conv, graph_of

ALIGNED = QuantizationConfig(equalization="align-inputs", recovery=())
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def network(batch: int = 1, **options: Any) -> Graph:
    """Two convolutions on an image [N, 3, 8, 8], channels first."""
    x = Input(name="x", tensor=f32(batch, 3, 8, 8))
    turned = Transpose(name="turned", x=x, perm=(0, 2, 3, 1))
    first = conv("first", turned, 6, low=0.0, **options)
    return graph_of(conv("last", first, 4), inputs=(x,))


def images(count: int = 12, seed: int = 0, batch: int = 1) -> list[dict[str, Array]]:
    """Normalized bytes, all 256 among them."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, size=(count, batch, 3, 8, 8)).astype(np.float32)
    return [{"x": (p / np.float32(255) - MEAN) / DEVIATION} for p in pixels]


def test_levels_keep_the_function() -> None:
    graph, data = network(), images()
    actual, ranges = align_inputs(graph, input_grids(graph, data))
    assert set(ranges.values()) == {LEVELS}
    for feeds in data:
        (expected,), (got,) = interpret(graph, feeds), interpret(actual, feeds)
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_rounding_levels_is_exact() -> None:
    graph, data = network(), images()
    int8 = quantize(graph, profile(graph, data, progress=False), ALIGNED, data=data)
    (rounding,) = (n for n in int8.nodes if isinstance(n, Quantize) and n.name.startswith("turned"))
    inner = Graph(int8.inputs, (("levels", rounding.x), ("rounded", rounding)))
    for feeds in images(3, seed=5):
        levels, rounded = interpret(inner, feeds)
        np.testing.assert_allclose(rounded, levels, atol=1e-3)


def test_aligned_inputs_lower_the_noise() -> None:
    graph, data = network(), images()
    profiled = profile(graph, data, progress=False)
    config = QuantizationConfig(equalization="align-inputs")
    expected = [interpret(graph, feeds) for feeds in data]
    plain, built = Candidate(graph, profiled), prepare(graph, profiled, config, data)
    noise = [
        relative_noise(make_plan(p.graph, p.profile, config, p.ranges), data, expected, True)
        for p in (plain, built)
    ]
    assert built.grids
    assert noise[1] < 0.8 * noise[0]


@moderate
@given(
    st.tuples(*[st.integers(0, 2)] * 4),
    st.floats(0.004, 3.0),
    st.integers(-200, 0),
    st.integers(0, 2**32 - 1),
)
def test_any_padding_is_framed(
    pads: tuple[int, int, int, int], step: float, offset: int, seed: int
) -> None:
    graph = network(pads=pads)
    rng = np.random.default_rng(seed)
    steps = (step * rng.uniform(0.5, 1.5, size=(1, 3, 1, 1))).astype(np.float32)
    pixels = rng.integers(0, 256, size=(4, 1, 3, 8, 8))
    pixels[0, 0, :, 0, 0], pixels[0, 0, :, 0, 1], pixels[0, 0, :, 0, 2] = 0, 255, 1
    data = [{"x": ((p + offset - 0.3) * steps).astype(np.float32)} for p in pixels]
    actual, ranges = align_inputs(graph, input_grids(graph, data))
    assert bool(ranges) == (offset - 0.3 > -255.5)
    for feeds in data:
        (expected,), (got,) = interpret(graph, feeds), interpret(actual, feeds)
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())


def test_a_grid_that_all_channels_share_with_zero_needs_a_range_only() -> None:
    graph = network()
    rng = np.random.default_rng(1)
    data = [
        {"x": (rng.integers(3, 250, size=(1, 3, 8, 8)) - np.float32(127)) / np.float32(128)}
        for _ in range(12)
    ]
    actual, ranges = align_inputs(graph, input_grids(graph, data))
    assert same_graph(actual, graph)
    assert ranges.keys() == {"x", "turned"}
    assert math.isclose(ranges["x"].width, 255 / 128, rel_tol=1e-6)


@pytest.mark.parametrize("kind", ["real", "coarse", "constant", "wide"])
def test_values_on_no_grid_of_bytes_stay(kind: str) -> None:
    rng = np.random.default_rng(0)
    draws = {
        "real": lambda: rng.normal(size=(1, 3, 8, 8)),
        "coarse": lambda: rng.integers(0, 100, size=(1, 3, 8, 8)) / 3,
        "constant": lambda: np.ones((1, 3, 8, 8)),
        "wide": lambda: rng.integers(0, 400, size=(1, 3, 8, 8)) / 3,
    }
    data = [{"x": draws[kind]().astype(np.float32)} for _ in range(12)]
    assert not input_grids(network(), data)


def test_an_input_with_other_readers_stays() -> None:
    graph = network()
    both = replace(graph, outputs=(*graph.outputs, ("turned", graph.by_name("turned"))))
    assert not input_grids(both, images())


def test_grids_do_not_depend_on_the_batch_split() -> None:
    one = input_grids(
        network(), [{"x": x} for f in images(6, batch=2) for x in np.split(f["x"], 2)]
    )
    other = input_grids(network(batch=2), images(6, batch=2))
    np.testing.assert_array_equal(one["turned"], other["turned"])


def test_decisions_keep_grids() -> None:
    graph, data = network(), images()
    profiled = profile(graph, data, progress=False)
    assert prepare(graph, profiled, ALIGNED, data).grids
    quantized = quantize_for_all_shapes(graph, profiled, ALIGNED, data)
    again = from_json(to_json(quantized.decisions), quantized.graph)
    assert same_graph(again.apply(network()), quantized.graph)


def test_steps_that_are_not_positive_are_refused() -> None:
    graph, data = network(), images()
    quantized = quantize_for_all_shapes(graph, profile(graph, data, progress=False), ALIGNED, data)
    text = to_json(quantized.decisions)
    text["grids"]["turned"][0][1] = (-1.0).hex()
    with pytest.raises(ValueError, match="steps of an input"):
        from_json(text, quantized.graph)


def test_the_compiled_program_gives_the_integers_of_the_graph() -> None:
    graph, data = network(), images()
    config = QuantizationConfig(quantize_output=True)
    profiled = profile(graph, data, progress=False)
    int8 = quantize(graph, profiled, config, data=data)
    assert any(isinstance(node, Concat) for node in int8.nodes)
    compiled = qg.compile(int8, num_threads=1)
    for feeds in images(3, seed=9):
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], interpret(int8, feeds)[0])


def test_frames_are_cut_with_their_batch() -> None:
    graph, data = network(batch=4), images(6, batch=4)
    actual, _ = align_inputs(graph, input_grids(graph, data))
    half = split_batch(actual, 2)
    assert half is not None
    x = data[0]["x"]
    (whole,) = interpret(actual, {"x": x})
    parts = [interpret(half, {"x": part})[0] for part in np.split(x, 2)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-5)


def test_other_convolutions_keep_their_inputs() -> None:
    graph, data = network(), images()
    actual, _ = align_inputs(graph, input_grids(graph, data))
    last = actual.by_name("last")
    assert isinstance(last, Conv)
    assert last.x.name == "first"
