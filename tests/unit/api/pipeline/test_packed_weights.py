"""``weights="int4"``: a model with weights in groups, from options to a saved file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.api.pipeline.groupwise import (
    NO_MATRICES,
    canonical_source,
    float_family,
    with_packed_weights,
)
from quantglow.evaluation.accuracy import NO_WEIGHTS_QUANTIZED
from quantglow.importer.onnx import open_model, weight_products
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

DEPTH, WIDTH = 64, 96
PRODUCTS = ["first", "second", "tied"]
OPTIONS: dict[str, Any] = {"num_threads": 1, "progress": False}


def model(dtype: Any = np.float32) -> onnx.ModelProto:
    """MatMul, Gemm with a row, a product with a transposed table, and one that has no weights."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    arrays = {
        "w1": rng.normal(size=(DEPTH, WIDTH)) / 8,
        "w2": rng.normal(size=(DEPTH, WIDTH)) / 8,
        "row": rng.normal(size=DEPTH),
        "table": rng.normal(size=(40, DEPTH)) / 8,
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["first"]),
        node("Relu", ["first"], ["positive"]),
        node("Gemm", ["positive", "w2", "row"], ["second"], transB=1, alpha=0.5, beta=2.0),
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["second", "turned"], ["tied"]),
        node("Transpose", ["tied"], ["columns"], perm=[1, 0]),
        node("MatMul", ["tied", "columns"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", kind, ["N", DEPTH])
    y = helper.make_tensor_value_info("y", kind, ["N", "N"])
    tensors = [numpy_helper.from_array(a.astype(dtype), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(count: int = 5, seed: int = 1, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DEPTH)).astype(dtype)


SAMPLES = [{"x": rows(seed=seed)} for seed in range(20)]


def sqnr(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(10 * np.log10(np.square(expected).sum() / np.square(actual - expected).sum()))


@pytest.mark.slow_variants
@pytest.mark.parametrize("data", [None, SAMPLES], ids=["nearest", "samples"])
@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"weights": "int4"}, 13),
        ({"weights": "int4", "group_size": 32, "symmetric_weights": False}, 15),
        ({"weights": "int4", "activations": "float"}, 13),
        ({"weights": "int8"}, 30),
    ],
    ids=str,
)
def test_outputs_are_near_float_at_all_shapes(options: dict, least: float, data: Any) -> None:
    compiled = qg.quantize_and_compile(model(), data, **options, **OPTIONS)
    exact = qg.compile(model(), num_threads=1)
    for count in (1, 2, 7, 33):
        x = rows(count, 9)
        assert sqnr(compiled(x), exact(x)) > least


@pytest.mark.slow
def test_the_report_names_products_and_what_they_compute_with() -> None:
    report: Any = qg.quantize_and_compile(model(), SAMPLES, weights="int4", **OPTIONS).report
    actual = {layer.name: layer.precision for layer in report.layers}
    assert actual == dict.fromkeys(PRODUCTS, "int4 weights, dynamic int8 activations")
    assert report.headline.startswith("the model with int4 weights is ")
    assert report.compared_with == "onnxruntime (float)"
    again = type(report).from_json(report.to_json())
    assert again.headline == report.headline


def test_without_samples_the_report_says_so() -> None:
    report: Any = qg.quantize_and_compile(model(), None, weights="int8", **OPTIONS).report
    assert any("there are no calibration samples" in note for note in report.notes)


@pytest.mark.slow
def test_a_saved_model_gives_the_same_numbers(tmp_path: Path) -> None:
    compiled = qg.quantize_and_compile(model(), SAMPLES, weights="int4", **OPTIONS)
    compiled(rows())
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    for count in (1, 5, 12):
        np.testing.assert_array_equal(loaded(rows(count)), compiled(rows(count)))


@pytest.mark.slow
def test_onnxruntime_runs_the_exported_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    compiled = qg.quantize_and_compile(
        model(), SAMPLES, weights="int4", activations="float", **OPTIONS
    )
    compiled(rows())
    compiled.export_onnx(path)
    (theirs,) = by_onnxruntime(onnx.load(path), {"x": rows()}, True)
    np.testing.assert_allclose(theirs, compiled(rows()), rtol=1e-4, atol=1e-4)


def test_excluded_products_stay_float() -> None:
    options = {"weights": "int4", "ignored_scope": ["first"], "nodes_to_exclude": ["ti*"]}
    report: Any = qg.quantize_and_compile(model(), None, **options, **OPTIONS).report
    assert {layer.name: layer.reason for layer in report.layers} == {
        "first": "ignored_scope 'first'",
        "second": "",
        "tied": "nodes_to_exclude 'ti*'",
    }


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(qg.IgnoredScopeError, match="frist"):
        qg.quantize_and_compile(model(), None, weights="int4", ignored_scope="frist", **OPTIONS)


def embedding(width: int = DEPTH) -> onnx.ModelProto:
    """Rows of a large table, and their products with it."""
    table = np.random.default_rng(2).normal(size=(1100, width)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["N"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 1100])
    tensors = [numpy_helper.from_array(table, "table")]
    graph = helper.make_graph(nodes, "g", [ids], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("weights", "least", "size"), [("int4", 13, 0.6), ("int8", 33, 1.1)])
def test_tables_are_quantized_too(weights: str, least: float, size: float, tmp_path: Path) -> None:
    ids = np.arange(40)
    compiled: Any = qg.quantize_and_compile(embedding(), None, weights=weights, **OPTIONS)
    (actual,), (expected,) = (
        item.run(None, {"ids": ids}) for item in (compiled, qg.compile(embedding(), num_threads=1))
    )
    assert sqnr(actual, expected) > least
    kinds = {layer.name: layer.precision for layer in compiled.report.layers}
    assert kinds["rows"] == f"{weights} weights"
    compiled.save(tmp_path / "m.qgm")
    elements = 2 * 1100 * DEPTH
    assert (tmp_path / "m.qgm").stat().st_size < size * elements + 10_000
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    np.testing.assert_array_equal(loaded.run(None, {"ids": ids})[0], actual)


def test_tables_of_rows_that_are_no_whole_groups_stay_float() -> None:
    report: Any = qg.quantize_and_compile(embedding(70), None, weights="int4", **OPTIONS).report
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert reasons == {"y": "", "rows": "rows of 70 are no whole groups of 64"}


@pytest.mark.parametrize("option", [{"max_drop": 0.1}, {"measure_speed": True}])
def test_options_of_int8_activations_are_refused(option: dict) -> None:
    with pytest.raises(qg.OptionError, match="Remedy: leave them out"):
        qg.quantize_and_compile(model(), SAMPLES, weights="int4", **option, **OPTIONS)


def test_products_shorter_than_a_group_stay_float() -> None:
    options = {"weights": "int4", "group_size": 128}
    report: Any = qg.quantize_and_compile(model(), SAMPLES, **options, **OPTIONS).report
    assert {layer.name: (layer.precision, layer.reason) for layer in report.layers} == {
        "first": ("float", "64 inputs are fewer than a group of 128"),
        "second": ("float", "96 inputs are fewer than a group of 128"),
        "tied": ("float", "64 inputs are fewer than a group of 128"),
    }
    assert NO_WEIGHTS_QUANTIZED in report.notes
    assert report.headline.startswith("WARNING: nothing is quantized")


def test_a_model_without_matrices_has_a_note() -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    relu = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report: Any = qg.quantize_and_compile(relu, None, weights="int4", **OPTIONS).report
    assert (report.layers, NO_MATRICES in report.notes) == ((), True)


@pytest.mark.parametrize(
    "options", [{"group_size": 32}, {"activations": "float"}, {"symmetric_weights": False}]
)
def test_options_of_weights_alone_need_them(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(qg.OptionError, match=f"{name} is for quantized weights.*Remedy"):
        qg.QuantizationConfig(**options)


def test_weights_that_old_models_list_as_inputs() -> None:
    old = model()
    for tensor in old.graph.initializer:
        shape = list(tensor.dims)
        old.graph.input.append(
            helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, shape)
        )
    compiled = qg.quantize_and_compile(old, None, weights="int8", **OPTIONS)
    assert [i.name for i in compiled.get_inputs()] == ["x"]
    assert sqnr(compiled(rows()), qg.compile(model(), num_threads=1)(rows())) > 30


def test_weights_of_float16(tmp_path: Path) -> None:
    compiled = qg.quantize_and_compile(model(np.float16), None, weights="int8", **OPTIONS)
    x = rows(dtype=np.float16)
    (actual,) = compiled.run(None, {"x": x})
    (expected,) = qg.compile(model(np.float16), num_threads=1).run(None, {"x": x})
    assert actual.dtype == np.float16
    assert sqnr(actual.astype(np.float32), expected.astype(np.float32)) > 30


def test_products_are_found_with_their_factors() -> None:
    first, second, tied = weight_products(open_model(model()))
    assert [p.result for p in (first, second, tied)] == PRODUCTS
    arrays = {t.name: numpy_helper.to_array(t) for t in model().graph.initializer}
    np.testing.assert_array_equal(second.weights, arrays["w2"].T * np.float32(0.5))
    np.testing.assert_array_equal(second.bias, arrays["row"] * np.float32(2))
    np.testing.assert_array_equal(tied.weights, arrays["table"].T)


def test_weights_that_are_not_finite_stay_float() -> None:
    changed = model()
    w1 = numpy_helper.to_array(changed.graph.initializer[0]).copy()
    w1[0, 0] = np.inf
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(w1, "w1"))
    assert [p.result for p in weight_products(open_model(changed))] == PRODUCTS[1:]


@pytest.mark.parametrize("data", [None, SAMPLES], ids=["nearest", "samples"])
def test_quantize_gives_a_graph_with_packed_weights(data: Any) -> None:
    graph = qg.import_model(model(), {"x": (5, DEPTH)})
    quantized = qg.quantize(graph, None, qg.QuantizationConfig(weights="int8"), data)
    assert sum(node.op == "GroupedMatMul" for node in quantized.nodes) == 3
    (mine,), (exact,) = (qg.interpret(g, {"x": rows()}) for g in (quantized, graph))
    assert sqnr(mine, exact) > 30
    np.testing.assert_array_equal(qg.compile(quantized, num_threads=1)(rows()), mine)


def test_diagnose_has_nothing_to_say_of_weights_in_groups() -> None:
    with pytest.raises(qg.OptionError, match="Remedy: look at the report"):
        qg.diagnose(model(), SAMPLES, qg.QuantizationConfig(weights="int4"))


def test_a_graph_is_quantized_as_a_model_is() -> None:
    graph = qg.import_model(model(), {"x": (5, DEPTH)})
    compiled = qg.quantize_and_compile(graph, None, weights="int4", **OPTIONS)(rows())
    expected = qg.quantize_and_compile(model(), None, weights="int4", **OPTIONS)(rows())
    np.testing.assert_array_equal(compiled, expected)


def test_the_rest_of_a_model_stays() -> None:
    """Metadata, local functions and weights that only a branch reads."""
    network = model()
    network.metadata_props.add(key="author", value="me")
    network.doc_string = "text"
    outer = numpy_helper.from_array(np.float32(3), "outer")
    network.graph.initializer.append(outer)
    value = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([helper.make_node(op, ["y", "outer"], ["z"])], op, [], [value])
        for op in ("Mul", "Add")
    ]
    network.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    node = helper.make_node("If", ["condition"], ["w"])
    node.attribute.append(helper.make_attribute("then_branch", branches[0]))
    node.attribute.append(helper.make_attribute("else_branch", branches[1]))
    network.graph.node.append(node)
    network.graph.output.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, None))
    source = canonical_source(network)
    config = qg.QuantizationConfig(weights="int8")
    built = with_packed_weights(source, float_family(source), (), config).source.whole
    assert (built.metadata_props[0].key, built.doc_string) == ("author", "text")
    assert {"outer", "condition"} < {tensor.name for tensor in built.graph.initializer}
    assert not {"w1", "w2", "table"} & {tensor.name for tensor in built.graph.initializer}
    y, w = by_onnxruntime(built, {"x": rows()}, True)
    np.testing.assert_array_equal(w, 3 * y)
