"""``export_onnx`` of models that are compiled in part: QDQ there, and the source's nodes behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.runtime.hybrid.fallback_model import PartlyCompiledModel
from quantglow.support.arrays import Array
from tests.support.attending_loop import attending_loop, feeds_of
from tests.support.cascade import cascade, picture
from tests.support.combinations import mark_slow
from tests.support.late_models import looping_text
from tests.unit.importer.onnx.onnx_models import floats, model_of
from tests.unit.runtime.test_partly_compiled import SHAPE, detector

pytestmark = pytest.mark.usefixtures("in_parts")

node = helper.make_node


def quantized(model: onnx.ModelProto, samples: list[Any]) -> Any:
    return qg.quantize_and_compile(
        model, samples, num_threads=1, verify=False, progress=False, effort="fast"
    )


def exported(compiled: Any, path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime, without sums that saturate, on the exported model, which is valid."""
    compiled.export_onnx(path)
    if all(end.type.tensor_type.HasField("shape") for end in onnx.load(path).graph.output):
        onnx.checker.check_model(onnx.load(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options)


def rounded(path: Path) -> int:
    """The number of values that an exported model rounds, in the bodies of its loops, too."""
    nodes = list(onnx.load(path).graph.node)
    inner = [n for node in nodes for a in node.attribute for n in a.g.node]
    return sum(node.op_type == "QuantizeLinear" for node in (*nodes, *inner))


def assert_near(actual: list[Array], expected: list[Array], tolerance: float = 0.02) -> None:
    """Integers are equal; floats are a step apart at most, which is a share of their range."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        near = tolerance * float(np.abs(other).max(initial=0)) if other.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, other, rtol=0, atol=near)


@pytest.mark.parametrize("opset", [11, 17, 21])
def test_the_head_is_int8_and_the_tail_as_it_was(opset: int, tmp_path: Path) -> None:
    model = detector()
    model.opset_import[0].version = opset
    compiled = quantized(model, [floats(*SHAPE, seed=seed) for seed in range(4)])
    session = exported(compiled, tmp_path / "m.onnx")
    assert rounded(tmp_path / "m.onnx") > 0
    x = floats(*SHAPE, seed=9)
    assert [o.name for o in session.get_outputs()] == [o.name for o in compiled.get_outputs()]
    assert_near(session.run(None, {"x": x}), compiled.run(None, {"x": x}))


def test_a_model_of_a_file_is_exported_too(tmp_path: Path) -> None:
    compiled = quantized(detector(), [floats(*SHAPE, seed=seed) for seed in range(4)])
    compiled.save(tmp_path / "m.qgm")
    session = exported(qg.load(tmp_path / "m.qgm", num_threads=1), tmp_path / "m.onnx")
    x = floats(*SHAPE, seed=9)
    assert_near(session.run(None, {"x": x}), compiled.run(None, {"x": x}))


@pytest.mark.slow
def test_a_part_behind_the_cut_is_int8_too(tmp_path: Path) -> None:
    compiled = quantized(cascade(), [picture(32, 40, seed) for seed in range(6)])
    assert isinstance(compiled, PartlyCompiledModel)
    assert compiled.staged is not None and compiled.staged.is_int8
    compiled.head.export_onnx(tmp_path / "head.onnx")
    session = exported(compiled, tmp_path / "m.onnx")
    assert rounded(tmp_path / "m.onnx") > rounded(tmp_path / "head.onnx")
    for size in ((32, 40), (48, 25)):
        x = picture(*size, 11)
        assert_near(session.run(None, {"x": x}), compiled.run(None, {"x": x}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", mark_slow([{}, {"stops": True}, {"numbered": True, "behind": True}], [{}])
)
def test_the_body_of_a_loop_is_int8_too(options: dict[str, bool], tmp_path: Path) -> None:
    model = attending_loop(70, **options)
    sizes = {"stop": 40} if "stops" in options else {}
    compiled = quantized(model, [feeds_of(model, seed, **sizes) for seed in range(4)])
    loop = compiled.staged.loop
    assert loop is not None and loop.is_int8
    session = exported(compiled, tmp_path / "m.onnx")
    assert rounded(tmp_path / "m.onnx") > 0
    feeds = feeds_of(model, 7, **sizes)
    assert_near(session.run(None, feeds), compiled.run(None, feeds), 0.05)


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


def test_rows_of_a_table_that_stay_float_are_float_in_the_exported_model(tmp_path: Path) -> None:
    """For free sizes they had another name, so no decision, and were rounded to int8."""
    nodes = [
        node("Gather", ["i", "two"], ["numbers"], axis=1),
        node("Gather", ["table", "numbers"], ["rows"]),
        node("Gather", ["rows", "crossed"], ["turned"], axis=1),
        node("Erf", ["turned"], ["z"]),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    known = {"table": floats(64, 4), "w": floats(16, 8), "two": np.array(2)}
    known["crossed"] = np.array([1, 0, 3, 2])
    tensors = [numpy_helper.from_array(array, name) for name, array in known.items()]
    value, real = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [value("i", TensorProto.INT64, ["K", 3]), value("x", real, ["K", 16])]
    outputs = [value("z", real, ["K", 4]), value("y", real, ["K", 8])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    rng = np.random.default_rng(0)
    samples = [{"i": rng.integers(0, 64, (k, 3)), "x": floats(k, 16, seed=k)} for k in (7, 3, 5)]
    compiled = quantized(model, samples)
    session = exported(compiled, tmp_path / "int8.onnx")
    assert rounded(tmp_path / "int8.onnx")
    for feeds in samples:
        np.testing.assert_allclose(session.run(None, feeds)[0], compiled(feeds)[0], rtol=1e-5)


def test_an_int8_body_of_a_loop_brings_no_float_weights(tmp_path: Path) -> None:
    late = looping_text()
    exported(quantized(late.model, late.samples(3)), tmp_path / "int8.onnx")
    (loop,) = (n for n in onnx.load(tmp_path / "int8.onnx").graph.node if n.op_type == "Loop")
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    read = {name for step in body.node for name in step.input}
    assert {tensor.name for tensor in body.initializer} <= read


def test_strings_stay_as_they_are(tmp_path: Path) -> None:
    compiled = quantized(strings(), [floats(*SHAPE, seed=seed) for seed in range(4)])
    session = exported(compiled, tmp_path / "m.onnx")
    assert rounded(tmp_path / "m.onnx") > 0
    x = floats(*SHAPE, seed=9)
    scores, label = session.run(None, {"x": x})
    assert_near([scores], compiled.run(["scores"], {"x": x}))
    assert label.tolist() == compiled.run(["label"], {"x": x})[0].tolist()
