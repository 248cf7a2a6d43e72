"""Ranges before anything is tried: flat ends are left out, and few values get spare room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Add, HardSigmoid, HardSwish, ReduceMean, Relu, Sigmoid, Swish, Tanh
from quantglow.profiling import Range, profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.tensor_ranges import TOLERANCE, live, tensor_ranges
from tests.unit.quantization.quantization_networks import conv, graph_of, image, samples_for

MINMAX = QuantizationConfig(calibrate_method="minmax")
ENDS = st.floats(0, 40, width=32)


def functions() -> list[Callable[[Any], Any]]:
    x = image()
    kinds: tuple[Any, ...] = (HardSwish, HardSigmoid, Sigmoid, Swish, Relu, Tanh)
    return [kind(name="f", x=x).function for kind in kinds]


def ranges_of(
    graph: Graph, config: QuantizationConfig = MINMAX, count: int = 4
) -> dict[str, Range]:
    profiled = profile(graph, samples_for(graph, count), progress=False)
    return {node.name: value for node, value in tensor_ranges(graph, profiled, config).items()}


@given(st.sampled_from(functions()), ENDS, ENDS)
def test_clipped_values_change_a_function_by_less_than_half_a_step(
    function: Callable[[Any], Any], below: float, above: float
) -> None:
    part = live(function, Range(-below, above))
    x = np.linspace(-below, above, 1001)
    exact = function(x)
    changed = np.abs(function(np.clip(x, part.low, part.high)) - exact)
    assert part.low <= 0 <= part.high
    assert changed.max() <= 2 * TOLERANCE * (exact.max() - exact.min()) / 255 + 1e-9


def test_a_hard_swish_leaves_out_values_below_minus_three() -> None:
    part = live(HardSwish(name="f", x=image()).function, Range(-15.0, 11.0))
    assert (part.low, part.high) == pytest.approx((-3.0, 11.0), abs=0.05)


def test_a_function_undefined_somewhere_keeps_its_range() -> None:
    assert live(np.log, Range(-2.0, 5.0)) == Range(-2.0, 5.0)


@pytest.mark.parametrize("kind", [Relu, HardSwish])
def test_another_reader_or_an_output_keeps_the_range_whole(kind: Any) -> None:
    x = image()
    before = conv("before", x, 8)
    function = kind(name="function", x=before)
    both = Add(name="both", x=function, y=before)
    alone, shared, given_out = (
        graph_of(*nodes, inputs=(x,))
        for nodes in ((conv("last", function, 4),), (conv("last", both, 4),), (function, before))
    )
    assert ranges_of(alone)["before"].low > ranges_of(shared)["before"].low
    assert ranges_of(given_out)["before"] == ranges_of(shared)["before"]


def test_auto_leaves_room_where_a_channel_was_seen_once_for_each_sample() -> None:
    x = image()
    mean: Node = ReduceMean(name="mean", x=conv("first", x, 8), axes=(1, 2))
    graph = graph_of(conv("last", mean, 4, kernel=1), inputs=(x,))
    auto, exact = ranges_of(graph, QuantizationConfig(), 40), ranges_of(graph, MINMAX, 40)
    assert auto["mean"].width == pytest.approx(1.25 * exact["mean"].width)
    assert auto["first"] == exact["first"]
    assert auto["x"] == exact["x"]
