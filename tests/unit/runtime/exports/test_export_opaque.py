"""``export_onnx`` of models that onnxruntime runs a part of: its nodes behind QDQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.support.arrays import Array
from tests.support.cascade import cascade, picture
from tests.support.detector import SHAPE
from tests.unit.importer.onnx.onnx_models import floats, model_of

pytestmark = pytest.mark.usefixtures("with_opaque_results")

node = helper.make_node


def quantized(model: onnx.ModelProto, samples: list[Any]) -> Any:
    return qg.quantize_and_compile(
        model, samples, num_threads=1, verify=False, progress=False, effort="fast"
    )


def exported(compiled: Any, path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime, without sums that saturate, on the exported model, which rounds values."""
    compiled.export_onnx(path)
    assert any(step.op_type == "QuantizeLinear" for step in onnx.load(path).graph.node)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options)


def assert_near(actual: list[Array], expected: list[Array]) -> None:
    """Integers are equal; floats are a step apart at most, which is a share of their range."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        near = 0.02 * float(np.abs(other).max(initial=0)) if other.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, other, rtol=0, atol=near)


def over_late_rows(opset: int) -> onnx.ModelProto:
    """A product, the rows of it that it chooses, and operators on these that other opsets have in
    another form."""
    wrapped, zero = ("<axes = [0]> (rows)", "") if opset < 13 else ("(rows, zero)", ", zero")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]> g
    (float[N, 4, 16] x) => (float[K, 1] y, float[K, 4, 8] z)
    <int64[1] zero = {{0}}, int64 first = {{0}}, float least = {{0.0}}> {{
     h = MatMul(x, w)
     column = Gather <axis = 2> (h, first)
     scores = Gather <axis = 1> (column, first)
     chosen = Greater(scores, least)
     rows = Compress <axis = 0> (h, chosen)
     more = Unsqueeze {wrapped}
     same = Squeeze {"<axes = [0]>" if opset < 13 else ""} (more{zero})
     z = Softmax <axis = 1> (same)
     sums = Flatten(z)
     y = ReduceMax <axes = [1]> (sums)
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(floats(16, 8), "w"))
    return model


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_the_nodes_of_onnxruntime_are_written_in_the_opset_of_the_others(
    opset: int, tmp_path: Path
) -> None:
    model = over_late_rows(opset)
    compiled = quantized(model, [floats(9, 4, 16, seed=seed) for seed in range(4)])
    compiled.save(tmp_path / "m.qgm")
    for each in (compiled, qg.load(tmp_path / "m.qgm", num_threads=1)):
        session = exported(each, tmp_path / "m.onnx")
        onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)
        for rows in (9, 1, 30):
            x = floats(rows, 4, 16, seed=rows)
            assert_near(session.run(None, {"x": x}), compiled.run(None, {"x": x}))


@pytest.mark.slow
def test_free_sizes_stay_free(tmp_path: Path) -> None:
    compiled = quantized(cascade(), [picture(32, 40, seed) for seed in range(6)])
    session = exported(compiled, tmp_path / "m.onnx")
    for size in ((32, 40), (48, 25)):
        x = picture(*size, 11)
        assert_near(session.run(None, {"x": x}), compiled.run(None, {"x": x}))


def strings() -> onnx.ModelProto:
    """A classifier of strings behind a convolution."""
    table = {"keys_int64s": [0, 1, 2, 3], "values_strings": ["a", "b", "c", "d"]}
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("ReduceMax", ["c"], ["scores"], axes=[2, 3], keepdims=0),
        node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        node("LabelEncoder", ["best"], ["label"], domain="ai.onnx.ml", **table),
    ]
    weights = [numpy_helper.from_array(floats(4, 3, 3, 3, seed=3), "w")]
    model = model_of(nodes, {"x": floats(*SHAPE)}, ["scores"], weights)
    label = helper.make_tensor_value_info("label", TensorProto.STRING, [1])
    model.graph.output.append(label)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return model


def test_strings_stay_as_they_are(tmp_path: Path) -> None:
    compiled = quantized(strings(), [floats(*SHAPE, seed=seed) for seed in range(4)])
    session = exported(compiled, tmp_path / "m.onnx")
    x = floats(*SHAPE, seed=9)
    scores, label = session.run(None, {"x": x})
    assert_near([scores], compiled.run(["scores"], {"x": x}))
    assert label.tolist() == compiled.run(["label"], {"x": x})[0].tolist()
