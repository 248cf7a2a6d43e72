"""Values of a branch that is not taken do not disturb calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.interpreter.branches import find_branches, in_branches
from tests.unit.importer.onnx.onnx_models import floats

node = helper.make_node


def graph_of(name: str, nodes: list[onnx.NodeProto], *results: str) -> onnx.GraphProto:
    shape = [4, 8]
    outputs = [helper.make_tensor_value_info(r, TensorProto.FLOAT, shape) for r in results]
    return helper.make_graph(nodes, name, [], outputs)


def branching(nested: bool = False) -> onnx.ModelProto:
    """x times the logarithm of its sum if that is positive, times w; else x times v.  Two results.

    ``nested`` adds a condition in the first branch: x if the mean is large, else its root.
    """
    then = [
        node("Log", ["sum"], ["log"]),
        node("Mul", ["x", "log"], ["scaled"]),
        node("MatMul", ["scaled", "w"], ["a1"]),
        node("Neg", ["a1"], ["a2"]),
    ]
    if nested:
        inner = [node("Sqrt", ["below"], ["root"]), node("Mul", ["x", "root"], ["in2"])]
        then[2:] = [
            node("Sub", ["sum", "limit"], ["above"]),
            node("Neg", ["above"], ["below"]),
            node("Greater", ["sum", "limit"], ["is_large"]),
            node(
                "If",
                ["is_large"],
                ["inner"],
                then_branch=graph_of("large", [node("Neg", ["scaled"], ["in1"])], "in1"),
                else_branch=graph_of("small", inner, "in2"),
            ),
            node("MatMul", ["inner", "w"], ["a1"]),
            node("Neg", ["a1"], ["a2"]),
        ]
    other = [node("MatMul", ["x", "v"], ["b1"]), node("Neg", ["b1"], ["b2"])]
    branches = {
        "then_branch": graph_of("positive", then, "a1", "a2"),
        "else_branch": graph_of("negative", other, "b1", "b2"),
    }
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["is_positive"]),
        node("If", ["is_positive"], ["y", "z"], **branches),
    ]
    known = {
        "w": floats(8, 8, seed=1),
        "v": floats(8, 8, seed=2),
        "zero": np.float32(0),
        "limit": np.float32(20),
    }
    x, y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xyz")
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "g", [x], [y, z], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(*offsets: float) -> list[np.ndarray]:
    return [floats(4, 8, seed=i) + np.float32(o) for i, o in enumerate(offsets * 4)]


@pytest.mark.slow_variants
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("offsets", [(1.0, -1.0, 0.3), (-1.0,), (1.0,)])
def test_a_model_is_calibrated_on_the_branches_taken(nested: bool, offsets: Any) -> None:
    model, data = branching(nested), samples(*offsets)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for x in data:
        for value, expected in zip(compiled(x), session.run(None, {"x": x}), strict=True):
            assert np.abs(value - expected).max() <= 0.1 * np.abs(expected).max()


def test_a_branch_that_is_never_taken_has_no_ranges() -> None:
    profile = qg.profile(branching(), samples(-1.0), progress=False)
    assert "b1" in profile
    assert "scaled" not in profile


def test_values_of_a_branch_that_is_taken_are_recorded() -> None:
    profile = qg.profile(branching(True), samples(1.0, -1.0, 0.3), progress=False)
    counts = {name: profile.histograms[name].count for name in ("x", "in1", "in2", "b1")}
    assert counts == {"x": 12 * 32, "in1": 4 * 32, "in2": 4 * 32, "b1": 4 * 32}


def test_nan_in_the_branch_that_is_taken_is_still_refused() -> None:
    model = branching()
    model.graph.node[1].op_type = "Less"
    with pytest.raises(qg.CalibrationError, match=r"NaN.*'log'"):
        qg.profile(model, samples(-1.0), progress=False)


def test_the_nodes_of_all_results_of_a_branch_belong_to_it() -> None:
    graph = qg.import_model(branching())
    names = {n.name for n in in_branches(graph)}
    assert {"log", "scaled", "a1", "a2", "b1", "b2"} <= names
    assert not {"sum", "is_positive", "y", "z"} & names
    assert {branch.outcome for branch in find_branches(graph)} == {True, False}
