"""Laws of equalization on drawn networks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Add, LayerNormalization
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.equalization import equalization_factors, rescale
from quantglow.quantization.options import EQUALIZATIONS
from quantglow.quantization.smoothing_scales import (
    SUFFIX,
    is_smoothing_scale,
    with_scaled_names,
    with_smoothing_scales,
)
from tests.generators.float_graphs.networks import fused_networks
from tests.unit.quantization.quantization_networks import reach_of, samples_for


def equalized(graph: Graph, data: list[Feeds]) -> Graph:
    whole = with_smoothing_scales(graph)
    reach = with_scaled_names(reach_of(graph, data))
    return rescale(graph, equalization_factors(whole, reach, EQUALIZATIONS))


def rounding_noise(graph: Graph, feeds: Feeds, expected: np.ndarray) -> float:
    """Change of the result if each constant changes by a step or two of float32."""
    rng = np.random.default_rng(0)

    def moved(node: Node) -> Node:
        if not isinstance(node, Constant):
            return node
        steps = np.float32(2.0**-22) * rng.choice((-1, 1), node.value.shape)
        return dataclasses.replace(node, value=(node.value * (1 + steps)).astype(np.float32))

    (actual,) = interpret(graph.rebuild(moved), feeds)
    return float(np.abs(actual - expected).max())


@pytest.mark.slow
@given(fused_networks())
def test_equalization_keeps_the_function(graph: Graph) -> None:
    data = samples_for(graph, 3)
    actual = equalized(graph, data)
    for feeds in data:
        (expected,), (got,) = interpret(graph, feeds), interpret(actual, feeds)
        # If large terms cancel, float32 itself is less exact.
        least = 30 * rounding_noise(graph, feeds, expected)
        np.testing.assert_allclose(
            got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max() + least
        )


@given(fused_networks())
def test_equalization_keeps_names_and_types(graph: Graph) -> None:
    data = samples_for(graph, 2)
    actual = equalized(graph, data)
    actual.verify()
    values = {n.name: n.type for n in graph.nodes if not isinstance(n, Constant)}
    kept = [n for n in actual.nodes if not isinstance(n, Constant) and not is_smoothing_scale(n)]
    assert {n.name: n.type for n in kept} == values


@given(fused_networks())
def test_a_normalized_value_that_is_added_gets_a_tap(graph: Graph) -> None:
    data = samples_for(graph, 2)
    taps = {node.name for node in equalized(graph, data).nodes if is_smoothing_scale(node)}
    sums = [node.y for node in graph.nodes if isinstance(node, Add)]
    added = [node for node in sums if isinstance(node, LayerNormalization)]
    assert taps == {f"{node.name}{SUFFIX}" for node in added}


@given(fused_networks())
def test_taps_are_made_once_and_only_where_they_are_named(graph: Graph) -> None:
    whole = with_smoothing_scales(graph)
    assert str(with_smoothing_scales(whole)) == str(whole)
    assert with_smoothing_scales(graph, ()) is graph
    names = [node.name for node in whole.nodes if is_smoothing_scale(node)]
    assert str(with_smoothing_scales(graph, names)) == str(whole)


@given(fused_networks())
def test_every_value_is_in_one_group_at_most(graph: Graph) -> None:
    names = [node.name for group in channel_groups(graph) for node in group]
    assert len(names) == len(set(names))
