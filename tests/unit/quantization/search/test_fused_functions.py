"""Functions on the sums of a layer: which are worth it, and what is left of the roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Add, Conv, HardSwish, LeakyRelu, Mul
from quantglow.profiling import profile
from quantglow.quantization.decisions import from_json, to_json
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.plan import make_plan
from quantglow.quantization.quantizer import quantize, quantize_for_all_shapes
from quantglow.quantization.search import time_budget as fused_functions
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.rounding_sensitivity import rounding_sensitivities
from quantglow.quantization.search.time_budget import (
    FUSION_BUDGET,
    fused_function_seconds,
    fusion_candidates,
    total_seconds,
    worth_fusing,
)
from quantglow.support.errors import OptionError
from quantglow.transforms.float import optimize
from quantglow.transforms.float.fusion import fuse_functions
from tests.generators.float_graphs.networks import networks
from tests.matrix.harness import assert_agree
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    sqnr,
)

FUSING = QuantizationConfig(equalization="fuse-functions", recovery=(), calibrate_method="minmax")
PLAIN = QuantizationConfig(equalization=(), recovery=(), calibrate_method="minmax")


def network(size: int = 6, coarse: float = 12.0) -> Graph:
    """Two functions: the values before ``rough`` reach ``coarse`` times as far as those before
    ``fine``, and most of them are 0 behind it.
    """
    x = image(8, size)
    fine = HardSwish(name="fine", x=conv("first", x, 16))
    wide = conv("second", fine, 16)
    wide = Conv(
        name="second",
        x=fine,
        w=constant("second_w", coarse * wide.w.value),
        b=constant("second_b", wide.b.value - 3 * coarse),
        pads=wide.pads,
    )
    rough = HardSwish(name="rough", x=wide)
    scaled = Mul(name="scaled", x=rough, y=constant("factor", 0.7))
    moved = Add(name="moved", x=scaled, y=constant("summand", 0.2))
    return graph_of(conv("last", moved, 80, kernel=1), inputs=(x,))


def chosen(graph: Graph, config: QuantizationConfig = FUSING) -> frozenset[str]:
    samples = samples_for(graph, 6)
    return worth_fusing(graph, profile(graph, samples, progress=False), config, samples)


def quantized(graph: Graph, config: QuantizationConfig) -> Graph:
    samples = samples_for(graph, 6)
    return quantize(graph, profile(graph, samples, progress=False), config, data=samples)


def activations_of(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes if isinstance(n, Conv) and n.activation is not None]


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget for all functions."""
    monkeypatch.setattr(fused_functions, "FUSION_BUDGET", 10.0)


def test_all_are_fused_that_the_budget_has_room_for(rich: None) -> None:
    graph = network()
    assert chosen(graph) == {"fine", "rough"}
    quantized_model = quantized(graph, FUSING)
    assert activations_of(quantized_model) == ["fine", "moved"]
    assert activations_of(quantized(graph, PLAIN)) == []


def test_the_most_sensitive_function_is_fused_if_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    samples = samples_for(graph, 6)
    plan = make_plan(graph, profile(graph, samples, progress=False), FUSING)
    actual = fusion_candidates(plan)
    errors = rounding_sensitivities(plan, list(actual), samples)
    worst = max(errors, key=lambda x: errors[x])
    share = fused_function_seconds(worst) / total_seconds(plan)
    monkeypatch.setattr(fused_functions, "FUSION_BUDGET", 1.5 * share)
    assert chosen(graph) == {actual[worst].name}
    monkeypatch.setattr(fused_functions, "FUSION_BUDGET", 0.5 * share)
    assert chosen(graph) == frozenset()


def test_costs_stay_within_the_budget() -> None:
    graph = network()
    samples = samples_for(graph, 6)
    plan = make_plan(graph, profile(graph, samples, progress=False), FUSING)
    actual = {function.name: x for x, function in fusion_candidates(plan).items()}
    spent = sum(fused_function_seconds(actual[name]) for name in chosen(graph))
    assert spent <= FUSION_BUDGET * total_seconds(plan)


def test_one_rounding_is_closer_to_float(rich: None) -> None:
    graph = network()
    assert sqnr(graph, quantized(graph, FUSING)) > sqnr(graph, quantized(graph, PLAIN)) + 1


def test_the_program_gives_the_integers_of_the_graph(rich: None) -> None:
    graph = network(size=5)
    config = QuantizationConfig(equalization="fuse-functions", quantize_output=True)
    quantized_model = quantized(graph, config)
    assert activations_of(quantized_model)
    for feeds in samples_for(graph, 2, seed=9):
        assert_agree(quantized_model, feeds, "x86-64")


@pytest.mark.parametrize(
    "options",
    [
        {"nodes_to_exclude": ["second"]},
        {"nodes_to_exclude": ["rough"]},
        {"nodes_to_exclude": ["scaled"]},
        {"nodes_to_exclude": ["moved"]},
        {"int16_activations": ["second"]},
    ],
)
def test_decisions_of_the_user_about_a_value_stay(rich: None, options: dict[str, Any]) -> None:
    config = QuantizationConfig(equalization="fuse-functions", recovery=(), **options)
    graph = network()
    assert chosen(graph, config) == {"fine"}
    quantized_model = quantized(graph, config)
    assert activations_of(quantized_model) == ["fine"]


@pytest.mark.parametrize("inside", ["rough", "scaled"])
def test_names_inside_a_chain_are_refused_as_ever(rich: None, inside: str) -> None:
    config = QuantizationConfig(equalization="fuse-functions", int16_activations=[inside])
    with pytest.raises(OptionError, match="not stored as integers"):
        quantized(network(), config)


def test_a_sum_that_others_read_is_rounded_for_them(rich: None) -> None:
    x = image(8)
    first = conv("first", x, 16)
    swish = HardSwish(name="swish", x=first)
    last = conv("last", Add(name="sum", x=first, y=swish), 80)
    assert chosen(graph_of(last, inputs=(x,))) == frozenset()
    assert chosen(graph_of(conv("last", swish, 80), first, inputs=(x,))) == frozenset()


def test_only_cheap_functions_behind_layers(rich: None) -> None:
    x = image(8)
    leaky = LeakyRelu(name="leaky", x=conv("first", x, 16), alpha=0.1)
    moved = Add(name="moved", x=leaky, y=leaky)
    swish = HardSwish(name="swish", x=moved)
    assert chosen(graph_of(conv("last", swish, 80), inputs=(x,))) == {"leaky"}


def test_without_samples_tables_stay(rich: None) -> None:
    graph = network()
    profiled = profile(graph, samples_for(graph, 6), progress=False)
    assert activations_of(quantize(graph, profiled, FUSING)) == []


@given(networks(), st.data())
def test_the_float_function_stays(drawn: Graph, data: st.DataObject) -> None:
    graph = optimize(drawn)
    names = [node.name for node in graph.nodes]
    some = data.draw(st.sets(st.sampled_from(names)))
    feeds = samples_for(graph, 1)[0]
    results = interpret(fuse_functions(graph, some), feeds)
    for expected, got in zip(interpret(graph, feeds), results, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(initial=0))


def test_a_name_that_is_no_function_fuses_nothing() -> None:
    graph = network()
    assert same_graph(fuse_functions(graph, {"second", "nowhere"}), graph)


def test_decisions_keep_the_fused_functions(rich: None) -> None:
    graph = network()
    samples = samples_for(graph, 6)
    profiled = profile(graph, samples, progress=False)
    quantized = quantize_for_all_shapes(graph, profiled, FUSING, samples)
    again = from_json(to_json(quantized.decisions), quantized.graph)
    assert again.fused == {"fine", "rough"}
    assert same_graph(again.apply(network()), quantized.graph)
    wide = again.apply(network(size=9))
    assert activations_of(wide) == ["fine", "moved"]


def test_samples_elsewhere_are_run_on_the_fused_graph(rich: None) -> None:
    graph = network()
    samples = samples_for(graph, 6)
    candidate = prepare(graph, profile(graph, samples, progress=False), FUSING, samples)
    other = network(size=9)
    names = [node.name for node in candidate.at(other).nodes]
    assert names == [node.name for node in candidate.graph.nodes]
