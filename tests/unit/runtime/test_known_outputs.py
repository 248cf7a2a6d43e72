"""Outputs that no node makes, beside late ones: inputs and constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of

pytestmark = pytest.mark.usefixtures("with_opaque_results")

CONSTANTS = {
    "floats": floats(2, 3),
    "integers": np.array([1, 2], np.int64),
    "halves": floats(4).astype(np.float16),
    "words": np.array(["one", "two"], object),
}


def late_model(output: str, element: int, shape: list[int]) -> onnx.ModelProto:
    """Relu of x [2, 3], the positions of its values, and one more output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("NonZero", ["y"], ["positions"]),
    ]
    known = [numpy_helper.from_array(a, name) for name, a in CONSTANTS.items() if name == output]
    model = model_of(nodes, {"x": floats(2, 3)}, ["y"], known)
    positions = helper.make_tensor_value_info("positions", TensorProto.INT64, [2, None])
    passed = helper.make_tensor_value_info(output, element, shape)
    model.graph.output.extend([passed, positions])
    return model


def same(actual: Any, expected: Any) -> bool:
    return bool(np.array_equal(np.asarray(actual), np.asarray(expected)))


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("output", "element", "shape"),
    [
        ("x", TensorProto.FLOAT, [2, 3]),
        ("floats", TensorProto.FLOAT, [2, 3]),
        ("integers", TensorProto.INT64, [2]),
        ("halves", TensorProto.FLOAT16, [4]),
        ("words", TensorProto.STRING, [2]),
    ],
)
def test_an_output_that_no_node_makes_is_no_reason_to_run_all_in_onnxruntime(
    output: str, element: int, shape: list[int], tmp_path: Path
) -> None:
    model, feeds = late_model(output, element, shape), {"x": floats(2, 3)}
    expected = by_onnxruntime(model, feeds)
    built = [qg.compile(model), qg.quantize_and_compile(model, [feeds] * 2, progress=False)]
    built[0].save(tmp_path / "m.qgm")
    for compiled in (*built, qg.load(tmp_path / "m.qgm")):
        assert isinstance(compiled, qg.CompiledModel)
        assert [info.name for info in compiled.get_outputs()] == ["y", output, "positions"]
        results = compiled.run(None, feeds)
        assert all(same(one, other) for one, other in zip(results[1:], expected[1:], strict=True))


def test_an_input_of_strings_may_be_an_output() -> None:
    model = late_model("name", TensorProto.STRING, [1])
    model.graph.input.append(helper.make_tensor_value_info("name", TensorProto.STRING, [1]))
    feeds = {"x": floats(2, 3), "name": np.array(["one"], object)}
    results = by_onnxruntime(model, feeds)
    compiled = qg.compile(model).run(None, feeds)
    assert all(same(one, other) for one, other in zip(compiled, results, strict=True))


def test_known_strings_are_an_output_beside_compiled_ones() -> None:
    table = {"keys_int64s": [0, 2], "values_strings": ["no", "yes"], "domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node("LabelEncoder", ["codes"], ["words"], **table),
        helper.make_node("Swish", ["x"], ["y"]),
    ]
    x, codes = floats(2, 3), numpy_helper.from_array(np.array([2, 0]), "codes")
    model = model_of(nodes, {"x": x}, ["y"], [codes], opset=24)
    model.ir_version = 10
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    words = helper.make_tensor_value_info("words", TensorProto.STRING, [2])
    model.graph.output.append(words)
    for compiled in (qg.compile(model), qg.quantize_and_compile(model, [x] * 2, verify=False)):
        y, actual = compiled.run(None, {"x": x})
        np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5)
        assert list(actual) == ["yes", "no"]


def test_an_empty_output_that_is_known_is_no_reason_either(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("NonZero", ["zeros"], ["none"]),
    ]
    size = numpy_helper.from_array(np.array([15], np.int64), "size")
    model, feeds = model_of(nodes, {"x": floats(2, 3)}, ["y"], [size]), {"x": floats(2, 3)}
    model.graph.output.append(helper.make_tensor_value_info("none", TensorProto.INT64, [1, None]))
    built = qg.compile(model)
    built.save(tmp_path / "m.qgm")
    for compiled in (built, qg.load(tmp_path / "m.qgm")):
        assert isinstance(compiled, qg.CompiledModel)
        results = compiled.run(None, feeds)
        assert all(map(same, results, by_onnxruntime(model, feeds)))
        assert results[1].shape == (1, 0)


def test_a_known_output_is_one_value_for_all_that_reads_it() -> None:
    classifier = {"coefficients": [1.0, -0.3, 0.7, 0.1], "intercepts": [0.1, 0.2]}
    names = {"keys_int64s": [0, 1], "values_strings": ["no", "yes"]}
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node(
            *("LinearClassifier", ["known"], ["label", "scores"]),
            **{"domain": "ai.onnx.ml", "classlabels_ints": [0, 1], **classifier},
        ),
        helper.make_node("LabelEncoder", ["label"], ["word"], domain="ai.onnx.ml", **names),
        helper.make_node("Cast", ["scores"], ["text"], to=TensorProto.STRING),
    ]
    known = numpy_helper.from_array(floats(2, 2), "known")
    model = model_of(nodes, {"x": floats(2, 3)}, ["y", "scores"], [known])
    for name, shape in (("word", [2]), ("text", [2, 2])):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.STRING, shape))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.CompiledModel)
    expected = by_onnxruntime(model, {"x": floats(2, 3)})
    results = compiled.run(None, {"x": floats(2, 3)})
    assert list(results[2]) == list(expected[2])
    assert [[float(word) for word in row] for row in results[3]] == pytest.approx(
        results[1], rel=1e-5
    )


def test_a_known_output_beside_an_empty_one_is_no_reason() -> None:
    """One node makes both."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Split", ["known", "sizes"], ["some", "none"], axis=0),
    ]
    known = numpy_helper.from_array(floats(2, 3), "known")
    sizes = numpy_helper.from_array(np.array([2, 0], np.int64), "sizes")
    model, feeds = model_of(nodes, {"x": floats(2, 3)}, ["y"], [known, sizes]), {"x": floats(2, 3)}
    for name, shape in (("some", [2, 3]), ("none", [0, 3])):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.CompiledModel)
    assert all(map(same, compiled.run(None, feeds), by_onnxruntime(model, feeds)))
