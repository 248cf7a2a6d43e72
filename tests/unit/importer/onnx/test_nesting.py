"""Deep and long models take no deep recursion and no time that doubles with each level."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node as node

import quantglow as qg
from quantglow.support.errors import ModelError
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of

FEEDS = {"x": floats(1, 4), "c": np.array(True)}


def nested(levels: int) -> onnx.ModelProto:
    """``|x|`` in an If in an If, and so on, with ``-|x|`` on the other side of each."""
    value = helper.make_tensor_value_info
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.add(version=17)
    graph = model.graph
    graph.name = "g"
    graph.input.append(value("x", TensorProto.FLOAT, [1, 4]))
    graph.input.append(value("c", TensorProto.BOOL, []))
    last = "x"
    for level in range(levels):
        graph.node.append(node("Abs", [last], [last := f"a{level}"]))
        built = graph.node.add(op_type="If", input=["c"], output=[f"y{level}"])
        graph.output.append(value(f"y{level}", TensorProto.FLOAT, [1, 4]))
        other = built.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g
        other.name = f"else{level}"
        other.node.append(node("Neg", [last], [f"e{level}"]))
        other.output.append(value(f"e{level}", TensorProto.FLOAT, [1, 4]))
        graph = built.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.name = f"then{level}"
    graph.node.append(node("Relu", [last], ["z"]))
    graph.output.append(value("z", TensorProto.FLOAT, [1, 4]))
    return model


@pytest.mark.parametrize("selected", [True, False])
def test_branches_nest_as_deep_as_files_can(selected: bool) -> None:
    feeds = {**FEEDS, "c": np.array(selected)}
    model, started = nested(30), time.process_time()
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert time.process_time() - started < 30
    np.testing.assert_array_equal(actual, by_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("levels", [40, 400, sys.getrecursionlimit()])
def test_deeper_models_than_protobuf_reads_are_refused(levels: int) -> None:
    model = nested(levels)
    for value in (model, model.SerializeToString()):
        with pytest.raises(ModelError):
            qg.compile(value)


@pytest.mark.slow
def test_chains_longer_than_the_recursion_limit_are_compiled() -> None:
    count = sys.getrecursionlimit() + 100
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    nodes = [node(("Sigmoid", "Neg")[i % 2], [names[i]], [names[i + 1]]) for i in range(count)]
    model = model_of(nodes, {"x": floats(1, 4)}, ["y"])
    graph = qg.import_model(model)
    (expected,) = qg.interpret(graph, {"x": floats(1, 4)})
    (actual,) = qg.compile(graph, backend="reference").run(None, {"x": floats(1, 4)})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    int8 = qg.quantize(graph, qg.profile(graph, [{"x": floats(1, 4)}] * 2))
    (integers,) = qg.compile(int8, backend="reference").run(None, {"x": floats(1, 4)})
    np.testing.assert_allclose(integers, expected, atol=0.05)
