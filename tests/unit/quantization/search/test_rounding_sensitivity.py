"""The error that one rounded value causes, and the best values for a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Conv, HardSwish, Softmax
from quantglow.ir.ops.arithmetic import dequantize, quantization
from quantglow.ir.ops.arithmetic import quantize as quantized_array
from quantglow.quantization.search.fake_quantization import relative_noise
from quantglow.quantization.search.rounding_sensitivity import (
    BUDGET_PARTS,
    knapsack,
    rounding_sensitivities,
    stored_members,
)
from quantglow.quantization.search.time_budget import int16_candidates
from tests.unit.quantization.quantization_networks import (
    compared_values,
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    small_cnn,
)
from tests.unit.quantization.search.test_choose_int16 import network, plan_of


def test_a_sensitivity_is_the_error_of_the_outputs_by_one_value() -> None:
    graph = network()
    plan = plan_of(graph)
    (root,) = {plan.groups[n] for n in graph.nodes if n.name == "thin"}
    actual = rounding_sensitivities(plan, [root], samples_for(graph, 2))[root]
    assert [n.name for n in stored_members(plan, root)] == ["thin"]
    noise = signal = 0.0
    for feeds in samples_for(graph, 2):
        values: dict[str, Any] = {}
        interpret(graph, feeds, [lambda n, v, values=values: values.__setitem__(n.name, v)])
        element = plan.element_types[root]
        rounded = dequantize(quantized_array(values["thin"], element), quantization(element))
        (behind,) = interpret(rest_of(graph), {"thin": rounded})
        noise += np.square(behind - values["last"], dtype=np.float64).sum()
        signal += np.square(values["last"], dtype=np.float64).sum()
    np.testing.assert_allclose(actual, noise / signal, rtol=1e-6)


def test_the_number_of_threads_changes_no_sensitivity() -> None:
    graph = small_cnn()
    plan, samples = plan_of(graph), samples_for(graph, 3)
    collected = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            collected.append(
                rounding_sensitivities(plan, int16_candidates(plan), samples, corrected=True)
            )
    assert collected[0] == collected[1] == collected[2]


def rest_of(graph: Graph) -> Graph:
    """The graph behind ``thin``."""
    thin = graph.by_name("thin")
    start = Input(name="thin", tensor=thin.type)
    swapped = graph.rebuild(lambda node: start if node.name == "thin" else node)
    return Graph((start,), swapped.outputs, "rest")


@pytest.mark.parametrize("make", [network, small_cnn])
def test_sensitivities_are_those_of_whole_runs(make: Any) -> None:
    graph = make()
    plan, samples = plan_of(graph), samples_for(graph, 2)
    expected = [compared_values(graph, feeds) for feeds in samples]
    actual = rounding_sensitivities(plan, int16_candidates(plan), samples)
    assert len(actual) > 1
    for root, error in actual.items():
        alone = replace(
            plan, element_types={n: plan.element_types[n] for n in stored_members(plan, root)}
        )
        np.testing.assert_allclose(
            error, relative_noise(alone, samples, expected, exact_weights=True), rtol=1e-4
        )


@pytest.mark.parametrize(("size", "enough"), [(8, True), (7, False)])
def test_bias_correction_removes_errors_that_are_the_same_everywhere(
    size: int, enough: bool
) -> None:
    """All pixels are alike, and so are their errors: a mean error, if 16 rows tell it."""
    x = image(8, size)
    swish = HardSwish(name="swish", x=conv("first", x, 16, pads=(0,) * 4))
    graph = graph_of(conv("last", swish, 80, pads=(0,) * 4), inputs=(x,))
    pixel = np.random.default_rng(2).normal(size=8).astype(np.float32)
    samples = [{"x": np.broadcast_to(pixel, x.type.shape).copy()}]
    plan = plan_of(graph)
    errors, left = (
        rounding_sensitivities(plan, int16_candidates(plan), samples, c) for c in (False, True)
    )
    assert min(errors.values()) > 1e-7
    behind_input = plan.groups[x]  # The first layer, with 25 rows, reads it.
    assert left[behind_input] < 1e-10
    others = errors.keys() - {behind_input}
    assert others
    assert all(left[r] < 1e-10 if enough else left[r] == errors[r] for r in others)


def test_errors_that_differ_between_samples_stay() -> None:
    """Each sample is one colour, so that its errors are the same everywhere, but not the next's."""
    x = image(8, 6)
    graph = graph_of(conv("last", x, 80, pads=(0,) * 4), inputs=(x,))
    pixels = np.random.default_rng(2).normal(size=(16, 8)).astype(np.float32)
    samples = [{"x": np.broadcast_to(p, x.type.shape).copy()} for p in pixels]
    plan = plan_of(graph)
    errors, left = (
        rounding_sensitivities(plan, int16_candidates(plan), samples, c) for c in (False, True)
    )
    assert left[plan.groups[x]] > 0.5 * errors[plan.groups[x]]


@given(st.lists(st.tuples(st.floats(0.001, 1.5), st.floats(0.0, 1.0)), max_size=7))
def test_no_other_values_within_the_budget_have_a_larger_sum(
    drawn: list[tuple[float, float]],
) -> None:
    nodes = [image() for _ in drawn]
    costs = {node: cost for node, (cost, _) in zip(nodes, drawn, strict=True) if cost <= 1}
    errors = {node: error for node, (_, error) in zip(nodes, drawn, strict=True)}
    actual = knapsack(costs, errors, 1.0)
    assert sum(costs[node] for node in actual) <= 1 + 1e-9
    # Costs are rounded up, so the best may need a little more room.
    best = max(
        sum(errors[n] for n in some)
        for size in range(len(costs) + 1)
        for some in combinations(costs, size)
        if sum(costs[n] + 1 / BUDGET_PARTS for n in some) <= 1
    )
    assert sum(errors[node] for node in actual) >= best - 1e-9


def test_sensitivities_ignore_shifts_before_a_softmax() -> None:
    x, rng = image(8, 4), np.random.default_rng(3)
    same = constant("same", np.repeat(rng.normal(size=(1, 1, 4, 1)), 64, axis=3))
    common = replace(conv("common", x, 4), low=0.0)
    logits = Conv(name="logits", x=common, w=same)
    graph = graph_of(Softmax(name="shares", x=logits), inputs=(x,))
    plan = plan_of(graph)
    errors = rounding_sensitivities(plan, [plan.groups[x]], samples_for(graph, 2))
    np.testing.assert_allclose(list(errors.values()), 0.0, atol=1e-6)
