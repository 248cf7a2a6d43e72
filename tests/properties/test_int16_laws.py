"""Laws of networks with drawn activations in int16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.types import DType
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.int16 import int16_ineligibility, value_names
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.quantizer import QuantizedGraph, quantize_for_all_shapes
from quantglow.transforms.float import optimize
from tests.generators.float_graphs.layers import shuffled
from tests.generators.float_graphs.networks import networks
from tests.matrix.harness import BASELINE, TARGETS, assert_agree
from tests.support.builder import Builder
from tests.support.effort import expensive, moderate
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import samples_for


def quantized(graph: Graph, draw: st.DataObject) -> QuantizedGraph:
    """A quantized graph with some values in int16, out of the possible ones."""
    samples = samples_for(graph)
    profiled = profile(graph, samples, progress=False)
    plan = make_plan(graph, profiled, QuantizationConfig(quantize_output=True))
    names = names_for_int16(graph, plan)
    assume(names)
    drawn = draw.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    config = QuantizationConfig(int16_activations=drawn, quantize_output=True)
    return quantize_for_all_shapes(graph, profiled, config, data=samples, progress=False)


def names_for_int16(graph: Graph, plan: Plan) -> list[str]:
    """Names of values that can be int16.

    The name of a value whose elements are those of an input has no operator.
    """
    return [
        name
        for name, nodes in value_names(graph).items()
        if nodes and not any(int16_ineligibility(plan, node) for node in nodes)
    ]


def test_a_name_without_an_operator_cannot_be_int16() -> None:
    """A channel shuffle of one channel, which is its input when it is an output, too."""
    b = Builder()
    x = b.input(2, 1, 4, 4)
    graph = optimize(b.graph(shuffled(b, x, []), b.conv(x, 3)))
    assert () in value_names(graph).values()
    plan = make_plan(
        graph, profile(graph, samples_for(graph), progress=False), QuantizationConfig()
    )
    assert names_for_int16(graph, plan)


@pytest.mark.slow_variants(0)
@expensive
@given(networks(), st.data())
def test_compiled_code_equals_the_interpreter(drawn: Graph, data: st.DataObject) -> None:
    graph = quantized(optimize(drawn), data).graph
    # A chain of functions is one table, so values inside of it do not exist.
    assume(DType.I16 in {node.type.dtype for node in graph.nodes})
    for target in (TARGETS[0], BASELINE):
        assert_agree(graph, samples_for(graph, 1)[0], target, rtol=0)


@pytest.mark.slow_variants(0)
@moderate
@given(networks(), st.data())
def test_decisions_give_back_the_graph_they_were_made_with(
    drawn: Graph, data: st.DataObject
) -> None:
    graph = optimize(drawn)
    quantized_model = quantized(graph, data)
    assert same_graph(quantized_model.decisions.apply(graph), quantized_model.graph)


@pytest.mark.slow_variants(0)
@moderate
@given(networks(), st.data())
def test_no_layer_can_overflow(drawn: Graph, data: st.DataObject) -> None:
    graph = quantized(optimize(drawn), data).graph
    for node in graph.nodes:
        w, b = getattr(node, "w", None), getattr(node, "b", None)
        if w is None or w.type.quant is None:
            continue
        (x, *_), axes = node.operands, tuple(range(w.type.rank - 1))
        low, high = x.type.dtype.limits
        reach = max(high - x.type.params.zero_point, x.type.params.zero_point - low)
        worst = reach * np.abs(w.value.astype(np.int64)).sum(axis=axes)
        worst = worst + (0 if b is None else np.abs(b.value.astype(np.int64)))
        assert worst.max(initial=0) < 2**31
