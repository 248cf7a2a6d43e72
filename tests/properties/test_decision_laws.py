"""Decisions by name give the graph that they were made with, and hold at every shape."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.importer.onnx import open_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Conv, Gemm, Relu, Reshape, Sigmoid, Softmax, Transpose
from quantglow.ir.types import f32
from quantglow.profiling import Profile, profile
from quantglow.quantization import decisions as serialization
from quantglow.quantization.decisions import NO_RANGE, UNDECIDED, Decisions
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import QuantizedGraph, quantize, quantize_for_all_shapes
from quantglow.transforms.float import optimize
from tests.generators.float_graphs.networks import networks
from tests.support.effort import moderate
from tests.support.free_network import SHAPES, free_model, image
from tests.support.same import same_graph
from tests.unit.quantization.quantization_networks import constant, samples_for, small_cnn, sqnr


def quantized(graph: Graph, **options: object) -> QuantizedGraph:
    """A quantized graph with ranges and recovery from random samples."""
    samples = samples_for(graph)
    profiled = profile(graph, samples, progress=False)
    config = QuantizationConfig(**options)  # type: ignore[arg-type]
    return quantize_for_all_shapes(graph, profiled, config, data=samples, progress=False)


def renamed(graph: Graph, chosen: type[Node]) -> Graph:
    """The graph with other names for the operators of one class."""

    def rule(node: Node) -> Node:
        return replace(node, name=f"{node.name}:elsewhere") if isinstance(node, chosen) else node

    return graph.rebuild(rule)


@pytest.mark.slow
@moderate
@given(networks(), st.booleans(), st.booleans(), st.booleans())
def test_decisions_give_back_the_graph_they_were_made_with(
    drawn: Graph, per_channel: bool, is_mixed: bool, quantize_output: bool
) -> None:
    graph = optimize(drawn)
    quantized_model = quantized(
        graph,
        per_channel=per_channel,
        preset="mixed" if is_mixed else "performance",
        quantize_output=quantize_output,
    )
    assert same_graph(quantized_model.decisions.apply(graph), quantized_model.graph)


def read_back(built: QuantizedGraph) -> Decisions:
    """The decisions in the form of a file, beside the graph."""
    text = json.dumps(serialization.to_json(built.decisions))
    return serialization.from_json(json.loads(text), built.graph)


def test_decisions_of_a_file_give_the_same_graph() -> None:
    graph = small_cnn()
    quantized_model = quantized(graph)
    assert same_graph(read_back(quantized_model).apply(graph), quantized_model.graph)


def test_a_file_keeps_the_factors_of_channels() -> None:
    quantized_model = quantized(small_cnn())
    factors = {"a": np.array([0.1, 1.0], np.float32), "b": np.array([1 / 3], np.float32)}
    restored = read_back(
        replace(quantized_model, decisions=replace(quantized_model.decisions, factors=factors))
    ).factors
    assert restored.keys() == factors.keys()
    assert all((restored[name] == factors[name]).all() for name in factors)


def free_family() -> tuple[Family, Profile]:
    source = open_model(free_model())
    family = Family(
        source.signature, source.source_hash, lambda case: optimize(source.graph(case.shape_map))
    )
    samples = [{"x": image(shape, seed)} for shape in SHAPES for seed in range(2)]
    return family, profile(family, samples, progress=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_is_quantized_as_if_decided_there(shape: tuple[int, ...]) -> None:
    family, observed = free_family()
    first = quantize_for_all_shapes(family.at({"x": SHAPES[0]}), observed, progress=False)
    graph = family.at({"x": shape})
    assert same_graph(first.decisions.apply(graph), quantize(graph, observed))


def test_weights_are_shared_by_all_shapes() -> None:
    family, observed = free_family()
    first = quantize_for_all_shapes(family.at({"x": SHAPES[0]}), observed, progress=False)
    other = first.decisions.apply(family.at({"x": SHAPES[1]}))
    shared = {id(n.value) for n in first.graph.nodes if isinstance(n, Constant) and n.value.ndim}
    layers = [n for n in other.nodes if isinstance(n, Conv | Gemm) and n.type.quant]
    assert layers
    assert all(isinstance(n.w, Constant) and id(n.w.value) in shared for n in layers)


def transposing() -> Graph:
    """A convolution on either side of two moves, and a function in the middle."""
    base = small_cnn()
    conv = next(n for n in base.nodes if isinstance(n, Conv) and n.type.shape[1] > 1)
    turned = Transpose(name="turned", x=conv, perm=(0, 2, 1, 3))
    bent = Sigmoid(name="bent", x=turned)
    w = np.random.default_rng(0).normal(size=(1, 1, conv.type.shape[3], 4)).astype(np.float32)
    last = Conv(name="last", x=bent, w=Constant(name="last_w", value=w))
    scores = Softmax(name="scores", x=last)
    return Graph(inputs=base.inputs, outputs=(("scores", scores),), source_hash="t")


def test_an_unknown_move_keeps_the_parameters_of_its_operand() -> None:
    graph = transposing()
    decisions = quantized(graph).decisions
    planned_graph = decisions.plan(renamed(graph, Transpose))
    (moved,) = (n for n in planned_graph.graph.nodes if isinstance(n, Transpose))
    assert moved not in planned_graph.reasons
    assert planned_graph.element_types[moved] == planned_graph.element_types[moved.operands[0]]


def test_an_unknown_move_of_a_float_value_stays_float() -> None:
    graph = transposing()
    conv = graph.by_name("turned").operands[0].name
    decisions = quantized(graph, ignored_scope=[conv]).decisions
    planned_graph = decisions.plan(renamed(graph, Transpose))
    assert planned_graph.reasons[planned_graph.graph.by_name("turned:elsewhere")] == UNDECIDED


def turning(length: int) -> Graph:
    """Rows [L, 8] between two products, turned to [8, L] and back: if L is 8, a Reshape keeps the
    last axis.
    """
    rng = np.random.default_rng(0)
    x = Input(name="x", tensor=f32(length, 8))
    w = rng.normal(size=(8, 8)) * np.geomspace(1, 100, 8)
    rows = Gemm(name="rows", x=x, w=constant("w", w))
    turned = Relu(name="active", x=Reshape(name="turned", x=rows, shape=(8, length)))
    back = Reshape(name="back", x=turned, shape=(length, 8))
    v = rng.normal(size=(8, 16)) / np.geomspace(1, 100, 8)[:, None]
    last = Gemm(name="last", x=back, w=constant("v", v))
    return Graph(inputs=(x,), outputs=(("y", last),), source_hash="t")


def test_a_value_that_cannot_be_rescaled_at_other_shapes_has_no_range_there() -> None:
    main, other = turning(8), turning(6)
    samples = samples_for(main, 80)
    quantized = quantize_for_all_shapes(main, profile(main, samples, progress=False), data=samples)
    assert quantized.decisions.factors.keys() == {"rows", "turned", "active", "back"}
    actual = quantized.decisions.apply(other)
    assert sqnr(main, quantized.graph) > 25
    assert sqnr(other, actual) > 25
    assert all(actual.by_name(name).type.quant is None for name in quantized.decisions.factors)


def test_an_unknown_operator_stays_float_and_so_does_who_reads_it_without_a_range() -> None:
    graph = transposing()
    quantized_model = quantized(graph)
    other = renamed(graph, Sigmoid)
    planned_graph = quantized_model.decisions.plan(other)
    reasons = {node.name: reason for node, reason in planned_graph.reasons.items()}
    assert reasons["bent:elsewhere"] == reasons["last"] == NO_RANGE
    assert sqnr(graph, quantized_model.decisions.apply(other)) > 20


def test_a_layer_with_another_input_type_is_rounded_anew() -> None:
    graph = transposing()
    decisions = quantized(graph).decisions
    doubled = {
        name: replace(e, quant=replace(e.quant, scales=(2 * e.quant.scales[0],)))
        for name, e in decisions.element_types.items()
        if e.quant is not None
    }
    built = replace(decisions, element_types=doubled).apply(graph)
    built.verify()
    assert sqnr(graph, built) > 15


def test_a_gemm_that_became_a_convolution_keeps_its_integers() -> None:
    x = Input(name="x", tensor=small_cnn().inputs[0].type)
    flat = x.type.shape[3]
    rows = replace(x, tensor=replace(x.type, shape=(1, flat)))
    w = np.random.default_rng(0).normal(size=(flat, 5)).astype(np.float32)
    gemm = Gemm(name="g", x=rows, w=Constant(name="w", value=w), b=None)
    pixels = replace(x, tensor=replace(x.type, shape=(1, 1, 1, flat)))
    conv = Conv(name="g", x=pixels, w=Constant(name="w:1x1", value=w[None, None]))
    graphs = [Graph(inputs=(n.x,), outputs=(("g", n),), source_hash="g") for n in (gemm, conv)]  # type: ignore[attr-defined]
    quantized_model = quantized(graphs[0])
    other = quantized_model.decisions.apply(graphs[1])
    feeds = np.random.default_rng(1).normal(size=(1, flat)).astype(np.float32)
    np.testing.assert_array_equal(
        interpret(quantized_model.graph, {"x": feeds})[0],
        interpret(other, {"x": feeds[:, None, None]})[0].reshape(1, 5),
    )
