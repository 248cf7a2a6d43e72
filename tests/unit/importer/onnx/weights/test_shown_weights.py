"""Weights that a graph has as floats are known without trying, and stay exact in files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.api.models.families import Built
from quantglow.api.pipeline.request import computing
from quantglow.importer.onnx.weights.storage import show
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Add
from quantglow.ir.types import f32

SIZE = 48


def model_with_values() -> onnx.ModelProto:
    """Rows of a table, as many as ``n`` says, times weights, and added to a product of ``x``."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal((SIZE, SIZE)) / SIZE**0.5 for name in ["table", "w1", "w2", "w3"]
    }
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    node = helper.make_node
    nodes = [
        node("Slice", ["table", "zero", "n"], ["rows"]),
        node("MatMul", ["rows", "w1"], ["early"]),
        node("ReduceMean", ["early"], ["mean"], axes=[0]),
        node("MatMul", ["x", "w2"], ["hidden"]),
        node("Add", ["hidden", "mean"], ["sum"]),
        node("Relu", ["sum"], ["bent"]),
        node("MatMul", ["bent", "w3"], ["y"]),
        node("Identity", ["early"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIZE])
    n = helper.make_tensor_value_info("n", TensorProto.INT64, [1])
    ends = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", SIZE]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["R", SIZE]),
    ]
    graph = helper.make_graph(nodes, "g", [x, n], ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def feeds(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((3, SIZE)).astype(np.float32)
    return {"x": x, "n": np.array([rows], np.int64)}


@pytest.mark.slow
def test_weights_of_what_is_computed_early_are_known_by_one_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first call at new values asks once whether the rest may be rounded."""
    answers, ask = list[bool](), Built.is_same
    monkeypatch.setattr(
        Built, "is_same", lambda self, s: answers.append(ask(self, s)) or answers[-1]
    )
    samples = [feeds(rows, rows) for rows in (5, 9, 13)]
    compiled = qg.quantize_and_compile(
        model_with_values(), samples, num_threads=1, effort="fast", progress=False
    )
    exact = qg.compile(model_with_values(), num_threads=1).run(None, feeds(7))
    y, z = compiled.run(None, feeds(7))
    assert answers == [True]
    np.testing.assert_array_equal(z, exact[1])
    assert np.abs(y - exact[0]).max() < 0.1


def test_values_of_the_model_lead_to_the_weights_that_they_were_computed_from() -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["table", "w1"], ["early"]),
        node("Shape", ["x"], ["sizes"]),
        node("Expand", ["early", "sizes"], ["wide"]),
        node("MatMul", ["x", "w2"], ["late"]),
        node("Add", ["late", "wide"], ["y"]),
    ]
    names = ("table", "w1", "w2")
    tensors = [numpy_helper.from_array(np.ones((2, 2), np.float32), n) for n in names]
    proto = helper.make_model(helper.make_graph(nodes, "g", [], [], tensors))
    x = Input(name="x", tensor=f32(2, 2))

    def weights_of(name: str) -> set[str]:
        constant = Constant(name=name, value=np.ones((2, 2), np.float32))
        graph = Graph(inputs=(x,), outputs=(("y", Add(name="y", x=x, y=constant)),))
        return show(proto, [graph]).intersection(names)

    assert weights_of("wide") == {"table", "w1"}
    assert weights_of("w2") == {"w2"}
    assert weights_of("late:state") == set()


def test_constants_are_those_of_numpy_while_native_code_profiles() -> None:
    """Sums of native code have another order: a model imported in a profiling run is the same."""
    values = {"n": (13,)}
    shapes = {"x": (3, SIZE), "n": (1,)}
    outside = qg.import_model(model_with_values(), shapes, input_values=values)
    with computing("compiled"):
        inside = qg.import_model(model_with_values(), shapes, input_values=values)
    one, other = (
        [node.value for node in graph.nodes if isinstance(node, Constant)]
        for graph in (outside, inside)
    )
    assert len(one) == len(other) > 2
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
