"""ai.onnx.ml operators that are arithmetic compute what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.importer.onnx.reading.label_codes import with_label_codes
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

FLOAT, INTEGER, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
X = floats(5, 4)
WHOLE = (X * 3).astype(np.int64)
GAPS = np.where(np.arange(20).reshape(5, 4) % 7 == 3, np.nan, X).astype(np.float32)
ZEROS = np.where(np.arange(5)[:, None] == 2, 0, X).astype(np.float32)
FOUR = [0.5, 1.0, -2.0, 3.0]
NAN = float("nan")


def ml_model(
    op: str, x: np.ndarray, *results: int, version: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """A model of one ai.onnx.ml node with results of these types."""
    names = [f"y{i}" for i in range(len(results))]
    node = helper.make_node(op, ["x"], names, name="n", domain="ai.onnx.ml", **attributes)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [
            helper.make_tensor_value_info(n, kind, None)
            for n, kind in zip(names, results, strict=True)
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def external(graph: Graph) -> list[str]:
    return [node.reason for node in graph.nodes if isinstance(node, External)]


def assert_compiled(model: onnx.ModelProto, x: np.ndarray) -> None:
    """The model computes what onnxruntime does, in the same types, with no help of it."""
    graph = qg.import_model(model)
    assert external(graph) == []
    results = by_onnxruntime(model, {"x": x})
    for value, expected in zip(qg.compile(graph).run(None, {"x": x}), results, strict=True):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "x", [X, X[0], WHOLE, WHOLE.astype(np.int32)], ids=["rows", "row", "i64", "i32"]
)
@pytest.mark.parametrize(
    ("offset", "scale"), [(FOUR, [1.0, 2.0, 0.3, 0.4]), ([0.5], [2.0])], ids=["each", "one"]
)
def test_scaler(x: np.ndarray, offset: list[float], scale: list[float]) -> None:
    assert_compiled(ml_model("Scaler", x, FLOAT, offset=offset, scale=scale), x)


def test_a_scaler_rounds_as_onnxruntime_does() -> None:
    """Trees behind it compare with thresholds that lie on values of the data."""
    x = floats(400, 4, seed=3)
    model = ml_model("Scaler", x, FLOAT, offset=FOUR, scale=[1.7, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(qg.compile(model)(x), by_onnxruntime(model, {"x": x})[0])


@pytest.mark.parametrize("x", [ZEROS, X[0], WHOLE, -np.abs(X)], ids=["zeros", "row", "i64", "neg"])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(x: np.ndarray, norm: str) -> None:
    assert_compiled(ml_model("Normalizer", x, FLOAT, norm=norm), x)


def test_binarizer() -> None:
    assert_compiled(ml_model("Binarizer", X, FLOAT, threshold=0.5), X)


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        (GAPS, {"imputed_value_floats": [9.0], "replaced_value_float": NAN}),
        (GAPS, {"imputed_value_floats": FOUR, "replaced_value_float": NAN}),
        (np.abs(WHOLE).astype(np.float32), {"imputed_value_floats": FOUR}),
        (GAPS[0], {"imputed_value_floats": FOUR, "replaced_value_float": NAN}),
        (WHOLE, {"imputed_value_int64s": [7, 8, 9, 6], "replaced_value_int64": 2}),
        (WHOLE, {"imputed_value_int64s": [5]}),
    ],
)
def test_imputer(x: np.ndarray, attributes: dict[str, Any]) -> None:
    result = FLOAT if x.dtype == np.float32 else INTEGER
    assert_compiled(ml_model("Imputer", x, result, **attributes), x)


@pytest.mark.parametrize("x", [X, WHOLE], ids=["float", "i64"])
def test_feature_vectorizer(x: np.ndarray) -> None:
    assert_compiled(ml_model("FeatureVectorizer", x, FLOAT, inputdimensions=[4]), x)


@pytest.mark.parametrize("x", [WHOLE, WHOLE[:, :1], WHOLE.astype(np.float32), WHOLE[0]], ids=str)
def test_one_hot_encoder(x: np.ndarray) -> None:
    assert_compiled(ml_model("OneHotEncoder", x, FLOAT, cats_int64s=[0, 1, -2, 3]), x)


@pytest.mark.parametrize("indices", [[[1]], [2, 0], [[3, 3, 1]], [*range(4)] * 9])
@pytest.mark.parametrize("x", [X, X[0], floats(2, 3, 4), WHOLE], ids=["rows", "row", "3-D", "i64"])
@pytest.mark.parametrize("is_known", [True, False])
def test_array_feature_extractor(x: np.ndarray, indices: Any, is_known: bool) -> None:
    result = FLOAT if x.dtype == np.float32 else INTEGER
    model, chosen = ml_model("ArrayFeatureExtractor", x, result), np.array(indices, np.int64)
    model.graph.node[0].input.append("i")
    feeds = {"x": x} | ({} if is_known else {"i": chosen})
    if is_known:
        model.graph.initializer.append(onnx.numpy_helper.from_array(chosen, "i"))
    else:
        model.graph.input.append(helper.make_tensor_value_info("i", INTEGER, chosen.shape))
    (expected,), graph = by_onnxruntime(model, feeds), qg.import_model(model)
    assert external(graph) == []
    (actual,) = qg.compile(graph).run(None, feeds)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("kind", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("targets", [2, 3])
def test_linear_regressor(kind: str, targets: int) -> None:
    coefficients, intercepts = floats(4 * targets).tolist(), floats(targets).tolist()
    attributes = {"coefficients": coefficients, "targets": targets, "post_transform": kind}
    assert_compiled(ml_model("LinearRegressor", X, FLOAT, **attributes), X)
    assert_compiled(ml_model("LinearRegressor", X, FLOAT, intercepts=intercepts, **attributes), X)


def classifier(
    scores: int, kind: str, seed: int = 0, op: str = "LinearClassifier", **labels: Any
) -> onnx.ModelProto:
    """A linear classifier of so many scores."""
    return ml_model(
        op,
        X,
        STRING if "classlabels_strings" in labels else INTEGER,
        FLOAT,
        coefficients=floats(4 * scores, seed=seed).tolist(),
        intercepts=floats(scores, seed=seed).tolist(),
        post_transform=kind,
        **labels,
    )


@pytest.mark.parametrize("kind", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("labels", [[0, 1], [3, -1], [5, -2, 9]], ids=str)
def test_linear_classifier(kind: str, labels: list[int]) -> None:
    assert_compiled(classifier(len(labels), kind, classlabels_ints=labels), X)


@pytest.mark.parametrize("kind", ["NONE", "LOGISTIC"])
def test_one_score_decides_between_two_labels(kind: str) -> None:
    assert_compiled(classifier(1, kind, classlabels_ints=[7, 3]), X)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (classifier(2, "PROBIT", classlabels_ints=[0, 1]), "post_transform PROBIT"),
        (classifier(1, "SOFTMAX", classlabels_ints=[0, 1]), "of one score for 2 labels"),
        (ml_model("LinearRegressor", X, FLOAT, coefficients=FOUR, post_transform="LOGISTIC"), "of"),
        (ml_model("OneHotEncoder", np.abs(WHOLE) % 2, FLOAT, cats_int64s=[0, 1], zeros=0), "zeros"),
    ],
)
def test_other_forms_run_in_onnxruntime_and_say_why(model: onnx.ModelProto, reason: str) -> None:
    graph = qg.import_model(model)
    assert external(graph) and all(reason in why for why in external(graph))
    x = X if graph.inputs[0].type.dtype.is_float else np.abs(WHOLE) % 2
    results = by_onnxruntime(model, {"x": x})
    for value, expected in zip(qg.compile(graph).run(None, {"x": x}), results, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("scores", [1, 2])
def test_labels_of_strings_are_a_table_of_numbers(version: int, scores: int) -> None:
    model = classifier(scores, "LOGISTIC", classlabels_strings=["no", "yes"])
    model.opset_import[1].version = version
    coded = with_label_codes(model)
    assert [n.op_type for n in coded.graph.node] == ["LinearClassifier", "LabelEncoder"]
    for value, expected in zip(
        by_onnxruntime(coded, {"x": X}), by_onnxruntime(model, {"x": X}), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_a_model_without_such_labels_is_itself() -> None:
    model = classifier(2, "NONE", classlabels_ints=[0, 1])
    assert with_label_codes(model) is model


def test_known_values_are_what_onnxruntime_makes_of_them() -> None:
    """``onnx.reference`` differs: it scales integers to integers, for example."""
    model = ml_model("Scaler", WHOLE, FLOAT, offset=[0.5], scale=[2.0])
    model.graph.initializer.append(onnx.numpy_helper.from_array(WHOLE, "x"))
    del model.graph.input[:]
    (actual,), (expected,) = qg.compile(model).run(None, {}), by_onnxruntime(model, {})
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_an_operator_of_the_fallback_on_a_constant_has_a_type() -> None:
    attributes = {"coefficients": [1.0], "support_vectors": FOUR, "n_supports": 1, "rho": [0.5]}
    kernel = {"kernel_type": "LINEAR", "kernel_params": [0.25, 0.0, 3.0]}
    model = ml_model("SVMRegressor", X, FLOAT, **kernel, **attributes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(X, "x"))
    del model.graph.input[:]
    (actual,), (expected,) = qg.compile(model).run(None, {}), by_onnxruntime(model, {})
    np.testing.assert_array_equal(actual, expected)


def test_a_model_need_not_state_an_opset_that_it_does_not_use() -> None:
    model = ml_model("Binarizer", X, FLOAT, threshold=0.5)
    del model.opset_import[0]
    assert_compiled(model, X)


def test_an_old_opset_that_nothing_uses_is_no_obstacle() -> None:
    model = ml_model("Binarizer", X, FLOAT, threshold=0.5)
    model.opset_import[0].version = 1
    assert_compiled(model, X)


def test_a_body_may_capture_strings() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    captures (float[1,4] x, int64 trips, string[n] words) => (float[1,4] y) {
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[1,4] v)
            => (bool on, float[1,4] next) {
            codes = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_floats = [0.5, 2.0],
                default_float = 3.0> (words)
            mean = ReduceMean<axes = [0], keepdims = 1> (codes)
            sum = Add (v, mean)
            next = Tanh (sum)
            on = Identity (c)
        }>
    }""")
    compiled = qg.compile(model, num_threads=1)
    for trips, words in ((3, ["a", "?"]), (0, ["b"]), (1, ["b", "a", "b"])):
        feeds = {"x": X[:1], "trips": np.array(trips), "words": np.array(words, object)}
        for actual, expected in zip(
            compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-5)
