"""Nodes in any order, and defaults of local functions, mean what they mean to onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import quantglow as qg
from quantglow.importer.onnx.reading.canonicalization import sort_nodes
from quantglow.support.errors import ModelError, QuantglowError
from tests.generators.onnx_models.models import drawn
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

HEAD = '<ir_version: 9, opset_import: ["" : 17, "own" : 1]>'
NESTED = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
 y = Add(b, d)
 b = If(c) <then_branch = t () => (float[2] p) {{ p = Neg(q) q = Abs(a) }},
            else_branch = e () => (float[2] r) {{ r = Sub(s, a) s = Exp(d) }}>
 a = Tanh(x)
 d = Relu(a)
}}"""
FUNCTION = """
<domain: "own", opset_import: ["" : 17]>
leaky <alpha: float = 0.1> (a) => (b) { n = Neg(a) b = LeakyRelu <alpha: float = @alpha> (n) }
"""
OUTER = """
<domain: "own", opset_import: ["" : 17, "own" : 1]>
outer <slope> (a) => (b) { b = own.leaky <alpha: float = @slope> (a) }
"""
CALLS = f"""{HEAD} g (float[4] x) => (float[4] y) {{
 y = Add(u, v)
 u = own.leaky(x)
 v = own.leaky <alpha = 0.5> (x)
}}"""


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    nodes = list(model.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[i] for i in np.random.default_rng(seed).permutation(len(nodes)))
    return proto


@pytest.mark.parametrize("seed", range(40))
def test_a_model_does_not_depend_on_the_order_of_its_nodes(seed: int) -> None:
    model = drawn(seed).model
    try:
        expected = str(qg.import_model(model))
    except QuantglowError:
        pytest.skip("a model that is not compiled")
    names = [node.output[0] for node in model.graph.node]
    actual = sort_nodes(shuffled(model, seed))
    observed = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    for node in actual.graph.node:
        assert {name for name in node.input if name} <= observed
        observed.update(node.output)
    assert sorted(node.output[0] for node in actual.graph.node) == sorted(names)
    if actual == model:
        assert str(qg.import_model(shuffled(model, seed))) == expected
    else:
        qg.import_model(shuffled(model, seed))


def test_a_sorted_model_stays_the_same_object() -> None:
    model = drawn(0).model
    assert sort_nodes(model) is model


@pytest.mark.parametrize("condition", [True, False])
def test_branches_may_stand_before_what_they_read(condition: bool) -> None:
    model = parser.parse_model(NESTED)
    feeds = {"x": np.float32([-1.5, 0.5]), "c": np.array(condition)}
    results = by_onnxruntime(sort_nodes(model), feeds)  # It sorts no branches itself.
    for one, other in zip(qg.compile(model).run(None, feeds), results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert model.graph.node[0].op_type == "Add"


def test_a_cycle_is_one_message() -> None:
    text = f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Add(x, z) z = Neg(y) }}"
    with pytest.raises(ModelError, match="sorted"):
        qg.import_model(parser.parse_model(text))


@pytest.mark.parametrize("depth", [30, 45, 200, 600])
def test_nodes_of_deep_branches_are_sorted_or_refused(depth: int) -> None:
    model = parser.parse_model(f"{HEAD} g (float[2] x, bool c) => (float[2] y) {{ y = Neg(x) }}")
    (y,), graph = model.graph.output, model.graph
    for _ in range(depth):
        del graph.node[:]
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        for branch in ("else_branch", "then_branch"):
            graph = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g
            graph.name = "b"
            graph.node.add(op_type="Neg", input=["x"], output=["y"])
            graph.output.append(y)
    graph.node[0].input[0] = "z"
    graph.node.add(op_type="Abs", input=["x"], output=["z"])
    feeds = {"x": np.float32([-1, 2]), "c": np.array(True)}
    try:
        (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    except QuantglowError:
        assert depth > 30
        return
    np.testing.assert_array_equal(actual, [-1, -2])


def test_calls_of_functions_have_their_defaults() -> None:
    model = parser.parse_model(CALLS)
    model.functions.append(parser.parse_function(FUNCTION))
    feeds = {"x": np.float32([-2, -1, 1, 2])}
    (actual,), (expected,) = qg.compile(model).run(None, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert not model.graph.node[1].attribute


def test_attributes_that_are_passed_on_have_their_defaults() -> None:
    model = parser.parse_model(CALLS.replace("leaky", "outer").replace("alpha", "slope"))
    model.functions.append(parser.parse_function(OUTER))
    model.functions.append(parser.parse_function(FUNCTION))
    feeds = {"x": np.float32([-2, -1, 1, 2])}
    (actual,), (expected,) = qg.compile(model).run(None, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
