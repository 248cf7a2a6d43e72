"""Other coordinates for values in linear parts of the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Add, Relu
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.quantization.decisions import from_json, to_json
from quantglow.quantization.equalize.channel_mixing import (
    MAX_CONDITION,
    LinearStreams,
    descend,
    linear_streams,
)
from quantglow.quantization.equalize.equalization import rescale
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize, quantize_for_all_shapes
from quantglow.quantization.search.levers import prepare
from quantglow.support.arrays import Array
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    sqnr,
)

MIXED = QuantizationConfig(equalization="mix-channels")


def mixtures_of(graph: Graph, samples: list[dict[str, Array]]) -> dict[str, Array]:
    streams = LinearStreams(graph, linear_streams(graph), len(samples))
    FloatRuns(graph).collect(samples, streams)
    return streams.mixtures()


def stream(channels: int = 8, batch: int = 1) -> Graph:
    """A linear residual stream of few sources, wide apart in size, between two convolutions."""
    x = Input(name="x", tensor=f32(batch, 8, 8, channels))
    first = conv("first", x, channels, kernel=1)
    rng = np.random.default_rng(4)
    low_rank = rng.normal(size=(channels, 2)) @ rng.normal(size=(2, channels)) * 4
    some = rng.normal(size=(channels, channels)) * 0.05
    first = replace(first, w=constant("first_w", (low_rank + some)[None, None]))
    inner = conv("inner", conv("wide", first, 16, kernel=1, low=0.0), channels, residual=first)
    return graph_of(conv("last", inner, 16, kernel=1, low=0.0), inputs=(x,))


def test_nothing_is_mixed_after_one_row() -> None:
    """Channels have no covariance then; NumPy would warn."""
    x = Input(name="x", tensor=f32(1, 1, 1, 8))
    first = conv("first", x, 8, kernel=1)
    graph = graph_of(conv("last", first, 16, kernel=1, low=0.0), inputs=(x,))
    assert linear_streams(graph)
    assert mixtures_of(graph, samples_for(graph, 1)) == {}


def test_mixing_keeps_the_function() -> None:
    graph, data = stream(), samples_for(stream(), 6)
    mixed = rescale(graph, mixtures_of(graph, data))
    assert mixed is not graph
    for feeds in samples_for(graph, 3, seed=7):
        (expected,), (got,) = interpret(graph, feeds), interpret(mixed, feeds)
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_all_values_of_a_stream_are_mixed_alike() -> None:
    actual = mixtures_of(stream(), samples_for(stream(), 6))
    assert actual.keys() == {"first", "inner"}
    np.testing.assert_array_equal(actual["first"], actual["inner"])
    assert np.linalg.cond(actual["first"]) <= MAX_CONDITION


def test_mixing_lowers_the_noise_where_few_sources_feed_a_stream() -> None:
    graph, data = stream(), samples_for(stream(), 12, seed=4)
    profiled = profile(graph, data, progress=False)
    plain, mixed = (
        quantize(graph, profiled, QuantizationConfig(recovery=(), equalization=e), data=data)
        for e in ((), "mix-channels")
    )
    assert sqnr(graph, mixed) > sqnr(graph, plain) + 1


@pytest.mark.parametrize("between", ["relu", "bounded", "output"])
def test_nonlinear_groups_are_not_mixed(between: str) -> None:
    x = image(8, 6)
    first = conv("first", x, 8, low=0.0 if between == "bounded" else -np.inf)
    after = Relu(name="relu", x=first) if between == "relu" else first
    last = conv("last", after, 4)
    outputs = (last, first) if between == "output" else (last,)
    graph = graph_of(*outputs, inputs=(x,))
    assert not mixtures_of(graph, samples_for(graph, 4))


def test_readers_in_groups_keep_a_stream_from_being_mixed() -> None:
    x = image(8, 6)
    first = conv("first", x, 8)
    w = constant("w", np.ones((3, 3, 4, 8)))
    last = replace(conv("last", first, 8), w=w, group=2)
    graph = graph_of(last, inputs=(x,))
    assert not mixtures_of(graph, samples_for(graph, 4))


def test_sums_are_mixed_with_their_operands() -> None:
    x = image(8, 6)
    total = Add(name="sum", x=conv("one", x, 8), y=conv("other", x, 8))
    graph = graph_of(conv("last", total, 4), inputs=(x,))
    assert mixtures_of(graph, samples_for(graph, 4)).keys() == {"one", "other", "sum"}


def test_a_channel_without_values_stops_the_search() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    rows[:, 2] = 0
    assert descend(rows, np.eye(4)) is None


def test_decisions_keep_mixtures() -> None:
    graph, data = stream(), samples_for(stream(), 12)
    profiled = profile(graph, data, progress=False)
    assert prepare(graph, profiled, MIXED, data).factors["first"].ndim == 2
    quantized = quantize_for_all_shapes(graph, profiled, MIXED, data)
    again = from_json(to_json(quantized.decisions), quantized.graph)
    assert sqnr(quantized.graph, again.apply(stream())) > 200


def test_matrices_without_inverse_are_refused() -> None:
    graph, data = stream(), samples_for(stream(), 12)
    quantized = quantize_for_all_shapes(graph, profile(graph, data, progress=False), MIXED, data)
    text = to_json(quantized.decisions)
    text["factors"]["first"][0] = text["factors"]["first"][1]
    with pytest.raises(ValueError, match="no inverse"):
        from_json(text, quantized.graph)


@pytest.mark.parametrize("batch", [2, 3, 6])
def test_mixtures_do_not_depend_on_the_batch_split(batch: int) -> None:
    data = np.concatenate([feeds["x"] for feeds in samples_for(stream(), 6)])
    parts = [{"x": data[i : i + batch]} for i in range(0, 6, batch)]
    one = mixtures_of(stream(), [{"x": row[None]} for row in data])
    other = mixtures_of(stream(batch=batch), parts)
    np.testing.assert_array_equal(one["first"], other["first"])
