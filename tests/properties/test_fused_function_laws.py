"""Laws of networks whose functions are computed on the sums of layers wherever possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import QuantizedGraph, quantize_for_all_shapes
from quantglow.quantization.search import time_budget as fused_functions
from quantglow.transforms.float import optimize
from tests.generators.float_graphs.networks import networks
from tests.matrix.harness import BASELINE, TARGETS, assert_agree
from tests.support.effort import expensive
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import samples_for


def quantized(graph: Graph, quantize_output: bool) -> QuantizedGraph:
    """A configuration with a budget for all functions."""
    samples = samples_for(graph)
    profiled = profile(graph, samples, progress=False)
    config = QuantizationConfig(quantize_output=quantize_output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_functions, "FUSION_BUDGET", 10.0)
        return quantize_for_all_shapes(graph, profiled, config, data=samples, progress=False)


@expensive
@given(networks(), st.booleans())
def test_programs_give_the_integers_of_graphs_that_decisions_give_back(
    drawn: Graph, quantize_output: bool
) -> None:
    graph = optimize(drawn)
    quantized_model = quantized(graph, quantize_output)
    assert same_graph(quantized_model.decisions.apply(graph), quantized_model.graph)
    for target in (TARGETS[0], BASELINE):
        rtol = 0 if quantize_output else 2e-5
        assert_agree(quantized_model.graph, samples_for(graph, 1)[0], target, rtol=rtol)
