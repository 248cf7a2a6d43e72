"""Models with tensors whose rank or element type only other runtimes know, from end to end."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.saved import archives
from quantglow.support.errors import FileFormatError, ModelError, WrongResultError

node = helper.make_node
info = helper.make_tensor_value_info


def late_model(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    element: int = TensorProto.FLOAT,
    **weights: np.ndarray,
) -> onnx.ModelProto:
    """A layer whose result ``r`` becomes ``u``, of that element type, with one axis or two as its
    mean decides; then ``nodes``."""
    rng = np.random.default_rng(0)
    weights |= {
        "w": rng.standard_normal((8, 16)).astype(np.float32) / 3,
        "v": rng.standard_normal((16, 4)).astype(np.float32) / 4,
        "limit": np.array(0.4, np.float32),
        "flat": np.array([-1]),
    }
    shape = helper.make_tensor_type_proto(element, None)
    branches: dict[str, Any] = {
        f"{kind}_branch": helper.make_graph([result], kind, [], [onnx.ValueInfoProto(name=kind)])
        for kind, result in (
            ("then", node("Identity", ["q"], ["then"])),
            ("else", node("Reshape", ["q", "flat"], ["else"])),
        )
    }
    for branch in branches.values():
        branch.output[0].type.CopyFrom(shape)
    layer = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Cast", ["r"], ["q"], to=element),
        node("ReduceMean", ["r"], ["mean"], keepdims=0),
        node("Greater", ["mean", "limit"], ["holds"]),
        node("If", ["holds"], ["u"], **branches),
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(
        [*layer, *nodes], "late", [info("x", TensorProto.FLOAT, ["n", 8])], outputs, tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of_both_ranks() -> list[dict[str, np.ndarray]]:
    """Feeds whose ``u`` has one axis, and two."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((rows, 8)).astype(np.float32) for rows in (5, 1, 3, 17, 2)]
    return [{"x": array * scale} for array in arrays for scale in (0.5, 3)]


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Any:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def looping() -> onnx.ModelProto:
    """A Loop whose body reads ``u``."""
    body = helper.make_graph(
        [
            node("ReduceSum", ["u"], ["sum"], keepdims=0),
            node("Add", ["state", "sum"], ["after"]),
            node("Identity", ["goes"], ["goes_on"]),
            node("MatMul", ["after", "v"], ["stacked"]),
        ],
        "body",
        [
            info("trip", TensorProto.INT64, []),
            info("goes", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, [1, 16]),
        ],
        [
            info("goes_on", TensorProto.BOOL, []),
            info("after", TensorProto.FLOAT, [1, 16]),
            info("stacked", TensorProto.FLOAT, [1, 4]),
        ],
    )
    nodes = [
        node("Size", ["u"], ["size"]),
        node("Min", ["size", "three"], ["trips"]),
        node("Loop", ["trips", "yes", "zeros"], ["y", "rows"], body=body),
    ]
    outputs = [
        info("y", TensorProto.FLOAT, [1, 16]),
        info("rows", TensorProto.FLOAT, ["trips", 1, 4]),
    ]
    return late_model(
        nodes,
        outputs,
        three=np.array(3),
        yes=np.array(True),
        zeros=np.zeros((1, 16), np.float32),
    )


def test_bodies_of_loops_read_values_of_other_ranks() -> None:
    model = looping()
    compiled = qg.compile(model)
    for feeds in feeds_of_both_ranks():
        for actual, reference in zip(
            compiled.run(None, feeds), expected(model, feeds), strict=True
        ):
            np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)


def test_such_bodies_stay_float() -> None:
    quantized = qg.quantize_and_compile(looping(), feeds_of_both_ranks(), effort="fast")
    assert "'u' has other ranks in other trips" in str(quantized.report)
    first, *_ = feeds_of_both_ranks()
    assert [array.shape for array in quantized.run(None, first)] == [(1, 16), (3, 1, 4)]


@pytest.mark.parametrize("element", [TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64])
def test_outputs_of_elements_that_no_graph_holds(element: int, tmp_path: Path) -> None:
    nodes = [
        node("Reshape", ["u", "rows"], ["q2"]),
        node("Cast", ["q2"], ["f"], to=TensorProto.FLOAT),
        node("MatMul", ["f", "v"], ["y"]),
    ]
    outputs = [info("q", element, ["n", 16]), info("y", TensorProto.FLOAT, ["n", 4])]
    model = late_model(nodes, outputs, element, rows=np.array([-1, 16]))
    compiled = qg.compile(model)
    assert isinstance(compiled, CompiledModel)
    assert [(o.shape, o.type) for o in compiled.get_outputs()] == [
        (["n", 16], f"tensor({helper.tensor_dtype_to_np_dtype(element)})"),
        (["n", 4], "tensor(float)"),
    ]
    reasons = [entry.reason for entry in compiled.report.fallback]
    assert any(reason.startswith("no graph holds 'q': it is tensor(uint") for reason in reasons)
    compiled.save(tmp_path / "late.qgm")
    loaded = qg.load(tmp_path / "late.qgm")
    for feeds in feeds_of_both_ranks():
        numbers, scores = expected(model, feeds)
        for each in (compiled, loaded):
            actual = each.run(None, feeds)
            np.testing.assert_array_equal(actual[0], numbers)
            assert actual[0].dtype == numbers.dtype
            np.testing.assert_allclose(actual[1], scores, rtol=1e-4, atol=1e-4)


def test_a_wrong_shape_of_a_result_is_told() -> None:
    model = late_model(
        [node("Abs", ["u"], ["a"]), node("Relu", ["a"], ["y"])],
        [info("y", TensorProto.FLOAT, ["n", 16])],
    )
    model.graph.value_info.append(info("a", TensorProto.FLOAT, [9, 16]))
    with pytest.raises(WrongResultError, match="node 'a'"):
        qg.quantize_and_compile(model, feeds_of_both_ranks(), effort="fast")


def test_results_of_many_axes_are_not_drawn_for_an_export() -> None:
    """Eight axes is what is assumed of a shape of any length."""
    nodes = [node("Shape", ["u"], ["sizes"]), node("Expand", ["one", "sizes"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = late_model(nodes, outputs, one=np.ones(1, np.float32))
    compiled = qg.compile(model)
    for feeds in feeds_of_both_ranks():
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], expected(model, feeds)[0])
    with suppress(ModelError):
        exported = onnx.load_from_string(compiled.to_onnx())
        for feeds in feeds_of_both_ranks():
            np.testing.assert_array_equal(expected(exported, feeds)[0], expected(model, feeds)[0])


@pytest.mark.parametrize("dims", [[], [1]])
def test_a_file_declares_the_inputs_of_its_model(dims: list[int], tmp_path: Path) -> None:
    model = late_model(
        [node("Abs", ["u"], ["y"])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    path = tmp_path / "late.qgm"
    qg.compile(model).save(path)

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    free = json.loads(members["free.json"])
    free["signature"]["inputs"][0]["dims"] = dims
    members["free.json"] = json.dumps(free).encode()
    manifest = json.loads(members.pop("manifest.json"))
    manifest["members"]["free.json"] = archives.describe(members["free.json"])
    manifest["sha256"] = archives.manifest_digest(manifest)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(FileFormatError, match="other inputs than the file declares"):
        qg.load(path).run(None, {"x": np.ones(tuple(dims), np.float32)})
