"""int16 where it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Add, HardSwish, Mul, Softmax
from quantglow.ir.ops.arithmetic import dequantize, is_integer
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.profiling import profile
from quantglow.quantization import quantizer
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.int16 import int16_ineligibility, is_stored
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.quantizer import quantize
from quantglow.quantization.rounding import round_layers
from quantglow.quantization.search import time_budget as choose_int16
from quantglow.quantization.search.fake_quantization import relative_noise
from quantglow.quantization.search.time_budget import INT16_BUDGET, int16_seconds, total_seconds
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.matrix.harness import assert_agree
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    small_cnn,
    sqnr,
)

AUTO = QuantizationConfig(
    int16_activations="auto", recovery=None, calibrate_method="minmax", equalization=()
)


def network() -> Graph:
    """A narrow value ``thin`` with one channel far larger than the others, then wide layers."""
    x, rows = image(3, 8), np.array([1.0, 1.0, 30.0, 1.0])
    thin = conv("thin", x, 4)
    thin = replace(thin, w=scaled(thin.w, rows), b=scaled(thin.b, rows))
    first = conv("first", thin, 64, low=0.0)
    first = replace(first, w=scaled(first.w, 1 / rows[:, None]))
    third = conv("third", conv("second", first, 64, low=0.0), 64, low=0.0)
    return optimize(graph_of(conv("last", third, 5), inputs=(x,)))


def scaled(array: Any, factors: np.ndarray) -> Constant:
    return constant(array.name, array.value * factors)


def quantized_with(config: QuantizationConfig, graph: Graph) -> Graph:
    samples = samples_for(graph, 6)
    return quantize(graph, profile(graph, samples, progress=False), config, data=samples)


def plan_of(graph: Graph) -> Plan:
    profiled = profile(graph, samples_for(graph, 6), progress=False)
    return make_plan(graph, profiled, QuantizationConfig())


def wide(graph: Graph) -> set[str]:
    return {n.name for n in graph.nodes if n.type.dtype is DType.I16}


def test_the_most_sensitive_value_becomes_int16() -> None:
    graph = network()
    plain = quantized_with(replace(AUTO, int16_activations=()), graph)
    chosen = quantized_with(AUTO, graph)
    assert "thin" in wide(chosen)
    assert sqnr(graph, chosen) > sqnr(graph, plain) + 6


def test_chosen_values_stay_within_the_budget() -> None:
    graph = network()
    plan, chosen = plan_of(graph), wide(quantized_with(AUTO, graph))
    stored = [n for n in graph.nodes if n.name in chosen]
    assert 0 < int16_seconds(plan, stored) <= INT16_BUDGET * total_seconds(plan)


def test_the_choice_is_the_same_every_time() -> None:
    graph = network()
    assert str(quantized_with(AUTO, graph)) == str(quantized_with(AUTO, graph))


def test_without_samples_nothing_is_chosen() -> None:
    graph = network()
    profiled = profile(graph, samples_for(graph), progress=False)
    assert not wide(quantize(graph, profiled, AUTO))


def test_compiled_code_of_a_choice_equals_the_interpreter() -> None:
    graph = quantized_with(AUTO, network())
    assert_agree(graph, samples_for(graph, 1)[0], "x86-64")


def test_values_inside_a_chain_of_functions_are_not_stored() -> None:
    graph = chain()
    plan = plan_of(graph)
    quantized = quantize(graph, profile(graph, samples_for(graph, 6), progress=False))
    integers = {n.name.removesuffix(":q") for n in quantized.nodes if is_integer(n.type)}
    values = [n for n in graph.nodes if not isinstance(n, Constant)]
    assert {n.name for n in values if is_stored(plan, n)} == {
        n.name for n in values if n.name in integers
    }
    assert {n.name for n in values if not is_stored(plan, n)} == {"scaled", "moved", "last"}


def test_a_chain_of_functions_is_rounded_once_by_the_judge() -> None:
    graph = chain()
    plan, samples = plan_of(graph), samples_for(graph, 2)
    exact = [interpret(graph, feeds) for feeds in samples]
    inside = replace(
        plan, element_types={**plan.element_types, **coarse(plan, ("scaled", "moved"))}
    )
    assert relative_noise(inside, samples, exact, True) == relative_noise(
        plan, samples, exact, True
    )


def chain() -> Graph:
    """A scalar factor and summand between a layer and its HardSwish."""
    x = image(4, 6)
    scaled = Mul(name="scaled", x=conv("first", x, 8), y=constant("factor", np.array(1.5)))
    moved = Add(name="moved", x=scaled, y=constant("summand", np.array(0.3)))
    return graph_of(conv("last", HardSwish(name="swish", x=moved), 64), inputs=(x,))


def coarse(plan: Plan, names: tuple[str, ...]) -> dict[Any, ElementType]:
    """Types of so few steps that nobody could overlook them."""
    element = ElementType(DType.I8, QuantParams((4.0,), (0,)))
    return {n: element for n in plan.element_types if n.name in names}


def test_values_that_cannot_be_int16_are_left_alone() -> None:
    x = image(8)
    powers = Softmax(name="powers", x=conv("scores", x, 8))
    graph = graph_of(conv("last", powers, 5), inputs=(x,))
    plan = plan_of(graph)
    assert int16_ineligibility(plan, graph.by_name("scores"))
    assert "scores" not in wide(quantized_with(AUTO, graph))


@pytest.mark.parametrize(("noise", "is_kept"), [(0.99, False), (0.5, True)])
def test_chosen_values_stay_only_if_the_int8_graph_is_closer_to_float(
    noise: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    profiled = profile(graph, data, progress=False)
    actual = iter([noise, 1.0])
    monkeypatch.setattr(quantizer, "noise_to_signal", lambda *arguments: next(actual))
    monkeypatch.setattr(choose_int16, "INT16_BUDGET", 10.0)
    quantized = quantize(graph, profiled, QuantizationConfig(int16_activations="auto"), data=data)
    assert any(node.type.dtype is DType.I16 for node in quantized.nodes) == is_kept


def test_recovery_returns_the_values_of_both_graphs_at_their_ends() -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    profiled = profile(graph, data, progress=False)
    int8 = quantize(graph, profiled, QuantizationConfig(), data=data)
    shared = {n.name for n in int8.nodes} & {n.name for n in graph.compute_nodes()}
    ends = sorted(shared | {"x"})
    recovered = round_layers(graph, int8, data, (), ends=ends)
    assert str(recovered.graph) == str(int8)
    for feeds, actual, expected in zip(
        data, recovered.int8_ends, recovered.float_ends, strict=True
    ):
        for exact, values in ((True, expected), (False, actual)):
            ours = values_of(graph if exact else int8, feeds)
            # BLAS rounds float sums by the number of its threads.
            tolerance = 1e-5 if exact else 0.0
            for name, value in zip(ends, values, strict=True):
                np.testing.assert_allclose(value, ours[name], rtol=tolerance, atol=tolerance)


def values_of(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    """All values of a graph as real numbers."""
    actual: dict[str, Array] = {}

    def keep(node: Node, value: Array) -> None:
        actual[node.name] = dequantize(value, node.type.params) if is_integer(node.type) else value

    interpret(graph, feeds, [keep])
    return actual
