"""int16 where it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input
from quantglow.interpreter import interpret
from quantglow.ops import Softmax
from quantglow.ops.arithmetic import dequantize, quant_of
from quantglow.ops.arithmetic import quantize as quantized_array
from quantglow.options import QuantizationConfig
from quantglow.passes import optimize
from quantglow.profiling import profile
from quantglow.quantization import quantize
from quantglow.quantization.choose_int16 import BUDGET, measured_harms, stored_members
from quantglow.quantization.costs import int16_seconds, total_seconds
from quantglow.quantization.plan import Plan, make_plan
from quantglow.quantization.widths import int16_refusal
from quantglow.types import DType
from tests.matrix.harness import assert_agree
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
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
    seen = profile(graph, samples_for(graph, 6), progress=False)
    return make_plan(graph, seen, QuantizationConfig())


def wide(graph: Graph) -> set[str]:
    return {n.name for n in graph.nodes if n.type.dtype is DType.I16}


def test_the_value_that_int8_harms_most_becomes_int16() -> None:
    graph = network()
    plain = quantized_with(replace(AUTO, int16_activations=()), graph)
    chosen = quantized_with(AUTO, graph)
    assert "thin" in wide(chosen)
    assert sqnr(graph, chosen) > sqnr(graph, plain) + 6


def test_what_is_chosen_stays_within_the_budget() -> None:
    graph = network()
    plan, chosen = plan_of(graph), wide(quantized_with(AUTO, graph))
    stored = [n for n in graph.nodes if n.name in chosen]
    assert 0 < int16_seconds(plan, stored) <= BUDGET * total_seconds(plan)


def test_the_choice_is_the_same_every_time() -> None:
    graph = network()
    assert str(quantized_with(AUTO, graph)) == str(quantized_with(AUTO, graph))


def test_without_samples_nothing_is_chosen() -> None:
    graph = network()
    seen = profile(graph, samples_for(graph), progress=False)
    assert not wide(quantize(graph, seen, AUTO))


def test_compiled_code_of_a_choice_equals_the_interpreter() -> None:
    graph = quantized_with(AUTO, network())
    assert_agree(graph, samples_for(graph, 1)[0], "x86-64")


def test_a_harm_is_what_the_outputs_lose_by_one_value() -> None:
    graph = network()
    plan = plan_of(graph)
    (root,) = {plan.groups[n] for n in graph.nodes if n.name == "thin"}
    found = measured_harms(plan, [root], samples_for(graph, 2), progress=False)[root]
    assert [n.name for n in stored_members(plan, root)] == ["thin"]
    wanted = 0.0
    for feeds in samples_for(graph, 2):
        values: dict[str, Any] = {}
        interpret(graph, feeds, [lambda n, v, values=values: values.__setitem__(n.name, v)])
        element = plan.elements[root]
        rounded = dequantize(quantized_array(values["thin"], element), quant_of(element))
        (behind,) = interpret(rest_of(graph), {"thin": rounded})
        error = np.square(behind - values["last"], dtype=np.float64).sum()
        wanted += error / np.square(values["last"], dtype=np.float64).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def rest_of(graph: Graph) -> Graph:
    """The graph behind ``thin``."""
    thin = graph.by_name("thin")
    start = Input(name="thin", tensor=thin.type)
    swapped = graph.rebuild(lambda node: start if node.name == "thin" else node)
    return Graph((start,), swapped.outputs, "rest")


def test_values_that_cannot_be_int16_are_left_alone() -> None:
    x = image(8)
    powers = Softmax(name="powers", x=conv("scores", x, 8))
    graph = graph_of(conv("last", powers, 5), inputs=(x,))
    plan = plan_of(graph)
    assert int16_refusal(plan, graph.by_name("scores"))
    assert "scores" not in wide(quantized_with(AUTO, graph))
