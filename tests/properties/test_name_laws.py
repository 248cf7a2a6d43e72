"""Names are unique in every graph, whatever the names of a model's values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Add, Relu
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.runtime.programs.build import Compiler
from quantglow.support.errors import ModelError
from quantglow.transforms.float import optimize
from tests.generators.float_graphs.networks import networks
from tests.support.effort import moderate
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import samples_for

TAGS = ("q", "dq", "w:q", "b:q", "table", "x", "real", "w", "b", "gamma", "smooth", "smooth:y")
LEVELS = (
    "scaled",
    "levels",
    "zeros",
    "per-step",
    "rows",
    "rows-before",
    "columns",
    "columns-after",
)


@st.composite
def named_like_helpers(draw: st.DrawFn) -> Graph:
    """A network with values whose names are those of other values' helper nodes."""
    graph = optimize(draw(networks()))
    stems = [node.name for node in graph.nodes]
    tags = st.lists(st.sampled_from((*TAGS, *LEVELS)), max_size=6)
    expected = {f"{draw(st.sampled_from(stems))}:{tag}" for tag in draw(tags)} - set(stems)
    values = [node.name for node in graph.nodes if not isinstance(node, Input)]
    renamed = dict(zip(draw(st.permutations(values)), sorted(expected), strict=False))

    def rule(node: Node) -> Node:
        return replace(node, name=renamed[node.name]) if node.name in renamed else node

    return graph.rebuild(rule)


@pytest.mark.slow
@moderate
@given(named_like_helpers(), st.sampled_from([(), "auto"]))
def test_int8_graphs_have_unique_names(graph: Graph, equalization: object) -> None:
    samples = samples_for(graph)
    profiled = profile(graph, samples, progress=False)
    config = QuantizationConfig(equalization=equalization)
    quantized = quantize_for_all_shapes(graph, profiled, config, data=samples, progress=False)
    quantized.graph.verify()
    quantized.candidate.graph.verify()
    assert same_graph(quantized.decisions.apply(graph), quantized.graph)


def test_fresh_names_are_new_each_time() -> None:
    names = Names({"a", "a_2"})
    assert [names.fresh(name) for name in ("a", "a", "b", "b")] == ["a_3", "a_4", "b", "b_2"]


def test_a_graph_with_two_nodes_of_one_name_is_refused() -> None:
    x = Input(name="x", tensor=f32(2))
    twins = Relu(name="y", x=x), Relu(name="y", x=x)
    graph = Graph((x,), (("sum", Add(name="sum", x=twins[0], y=twins[1])),))
    for refused in (graph.verify, lambda: graph.by_name("x"), lambda: compiler().compile(graph)):
        with pytest.raises(ModelError, match=r"two nodes are called 'y' \(Relu and Relu\)"):
            refused()


def compiler() -> Compiler:
    return Compiler.of("native", 1, "reference", ())
