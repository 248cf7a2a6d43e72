"""Nodes without an importer become External nodes that mean what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantglow.importer.onnx import import_model, open_model
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.importer.onnx.resolvers.external import captured_names, check_external, rename
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.graph.text import parse_graph, print_graph, text_constants
from quantglow.ir.ops import External
from quantglow.ir.types import f32
from quantglow.support.errors import FileFormatError, UnsupportedOpError
from tests.unit.importer.onnx.onnx_models import (
    Const,
    by_onnxruntime,
    floats,
    model_of,
    single,
    weights,
)

node = helper.make_node


@pytest.fixture(scope="module", autouse=True)
def fewer_importers() -> Iterator[None]:
    """Importers without those of Hardmax and RNN."""
    with patch.dict(IMPORTERS):
        del IMPORTERS["Hardmax"], IMPORTERS["RNN"]
        yield


def imported(model: onnx.ModelProto) -> Graph:
    graph = import_model(model, fallback=True)
    graph.verify()
    return graph


def externals(graph: Graph) -> list[External]:
    return [n for n in graph.nodes if isinstance(n, External)]


def squeeze_chain() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Relu, Hardmax (not imported), Add of both."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Hardmax", ["a"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    feeds = {"x": floats(3, 4)}
    return model_of(nodes, feeds, ["y"]), feeds


def branching() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An If whose condition is computed, and whose branches read ``a`` from outside; one of them
    holds a Hardmax."""
    out = [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3])]
    three = numpy_helper.from_array(np.array(3, np.float32), "k")
    nodes = [node("Mul", ["a", "k"], ["m"]), node("Hardmax", ["m"], ["t"])]
    then = helper.make_graph(nodes, "then", [], out, [three])
    other = helper.make_graph([node("Neg", ["a"], ["t"])], "else", [], out)
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("ReduceMax", ["x"], ["s"], keepdims=0),
        node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["o"], then_branch=then, else_branch=other),
        node("Tanh", ["o"], ["y"]),
    ]
    feeds = {"x": floats(2, 3)}
    return model_of(nodes, feeds, ["y"]), feeds


def recurrent() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An RNN with two outputs and weights too large to be part of the node."""
    operands = (floats(5, 2, 16), weights(1, 20, 16), weights(1, 20, 20))
    model, feeds = single("RNN", *operands, outputs=2, hidden_size=20)
    return model, feeds


@pytest.mark.parametrize("make", [squeeze_chain, branching, recurrent])
def test_the_interpreter_gives_what_onnxruntime_gives(make: Any) -> None:
    model, feeds = make()
    results = interpret(imported(model), feeds)
    for mine, expected in zip(results, by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)


def test_without_a_fallback_the_node_is_a_problem() -> None:
    with pytest.raises(UnsupportedOpError, match="Hardmax"):
        import_model(squeeze_chain()[0])


def test_only_the_unknown_node_is_external() -> None:
    graph = imported(squeeze_chain()[0])
    assert [(n.name, n.op_type) for n in externals(graph)] == [("b", "Hardmax")]


def test_the_reason_is_kept() -> None:
    (actual,) = externals(imported(squeeze_chain()[0]))
    assert actual.reason == "there is no importer for this operator"


def test_outputs_of_one_node_share_operands_and_model() -> None:
    one, two = externals(imported(recurrent()[0]))
    assert (one.args, one.model, one.output, two.output) == (two.args, two.model, 0, 1)


def test_large_known_operands_are_constants_of_the_graph() -> None:
    actual = externals(imported(recurrent()[0]))[0]
    assert [type(a) is Constant for a in actual.args] == [False, True, True]


def test_values_that_branches_capture_are_operands() -> None:
    first = next(n for n in externals(imported(branching()[0])) if n.op_type == "If")
    assert "a" in [a.name for a in first.args]


def test_shapes_known_only_at_run_time_are_a_problem_where_late_results_are_refused() -> None:
    model, _ = single("NonZero", floats(2, 3))
    with pytest.raises(UnsupportedOpError, match="NonZero"):
        open_model(model).graph(fallback=True)


def test_late_results_are_opaque_up_to_the_next_value_of_a_known_shape() -> None:
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["f"], to=TensorProto.FLOAT),
        node("ReduceMean", ["f"], ["mean"], axes=[1], keepdims=1),
        node("Neg", ["mean"], ["y"]),
    ]
    x = np.float32([[1, 0, 2], [0, 0, 3]])
    graph = imported(model_of(nodes, {"x": x}, ["y"], opset=13))
    kinds = {node.name: str(node.type) for node in graph.nodes}
    assert kinds["places"] == kinds["f"] == "opaque[]"
    assert kinds["mean"] == "f32[2x1]" and kinds["y"] == "f32[2x1]"
    means = np.mean(np.nonzero(x), axis=1, keepdims=True)
    np.testing.assert_allclose(interpret(graph, {"x": x})[0], -means, rtol=1e-6)


def test_results_of_late_shapes_are_opaque() -> None:
    """Whatever reads them is, too, and a text of the graph says so."""
    model, feeds = single("NonZero", floats(2, 3))
    model.graph.node.append(node("Neg", ["y"], ["z"]))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT64, None))
    with pytest.raises(UnsupportedOpError, match="NonZero"):
        import_model(model)
    graph = imported(model)
    assert [str(actual.type) for actual in externals(graph)] == ["opaque[]"] * 2
    assert set(graph.declared.values()) == {"tensor(int64)"}
    again = parse_graph(print_graph(graph), text_constants(graph))
    assert str(again) == str(graph)
    y, z = interpret(again, feeds)
    np.testing.assert_array_equal(y, np.nonzero(feeds["x0"]))
    np.testing.assert_array_equal(z, -y)


def test_the_text_of_an_external_node_reads_back() -> None:
    graph = imported(recurrent()[0])
    again = parse_graph(print_graph(graph), text_constants(graph))
    assert str(again) == str(graph)


@pytest.mark.parametrize(
    "change",
    [{"model": b"\xff\x07"}, {"result": f32(3, 5)}, {"output": 1}, {"args": ()}],
    ids=lambda c: next(iter(c)),
)
def test_an_altered_external_node_is_refused(change: dict[str, Any]) -> None:
    (actual,) = externals(imported(squeeze_chain()[0]))
    with pytest.raises(FileFormatError, match="External b"):
        check_external(replace(actual, **change))


def test_an_external_node_that_reads_files_is_refused() -> None:
    (actual,) = externals(imported(squeeze_chain()[0]))
    proto = onnx.ModelProto.FromString(actual.model)
    tensor = onnx.TensorProto(name="k", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    proto.graph.initializer.append(tensor)
    with pytest.raises(FileFormatError, match="reads other files"):
        check_external(replace(actual, model=proto.SerializeToString()))


def test_attributes_left_out_count_with_their_defaults() -> None:
    """ONNX's shape inference takes an STFT that does not say so for two-sided."""
    step, window = Const(np.array(4)), Const(np.hanning(16).astype(np.float32))
    model, feeds = single("STFT", floats(1, 40), step, window)
    graph = imported(model)
    assert graph.outputs[0][1].type.shape == (1, 7, 9, 2)
    (actual,), (expected,) = interpret(graph, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_body_may_define_what_another_value_is_called() -> None:
    """Exporters use names again in other subgraphs, whose values may be part of the graph."""
    out = [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])]
    inner = [node("Neg", ["a"], ["c"]), node("Add", ["c", "a"], ["b"])]
    then = helper.make_graph(inner, "then", [], out)
    other = helper.make_graph([node("Neg", ["a"], ["d"])], "else", [], out)
    choice = node("If", ["is"], ["y"], then_branch=then, else_branch=other)
    renamed = rename(choice, {"a": "b", "y": "z"})
    branch = next(a.g for a in renamed.attribute if a.name == "then_branch")
    assert list(captured_names(branch)) == ["b", "b"]
    assert [name for n in branch.node for name in n.output] == ["c", branch.output[0].name]
    assert branch.output[0].name != "b"
