"""Models in the form of scikit-learn's exporter: arithmetic is compiled, in int8 too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.evaluation.layers import NO_OUTPUT_OF_NUMBERS
from tests.support.combinations import covering
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

ML = "ai.onnx.ml"
INTEGER, STRING, FLOAT = TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT
FEATURES, CLASSES = 6, 3
SCALES = np.array([1e-2, 1, 30, 0.5, 200, 7], np.float32)
"""Scales of the features, typical for tables."""
WORDS = ["no", "perhaps", "yes"]


def samples(count: int, seed: int = 0) -> np.ndarray:
    return floats(count, FEATURES, seed=seed) * SCALES + SCALES


def ml(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=op, domain=ML, **attributes)


def scaler() -> onnx.NodeProto:
    return ml("Scaler", ["x"], ["s"], offset=SCALES.tolist(), scale=(1 / SCALES).tolist())


def network() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Two layers and Softmax on "s": "probabilities"; the number of the class: "code"."""
    nodes = [
        helper.make_node("MatMul", ["s", "w1"], ["h"]),
        helper.make_node("Add", ["h", "b1"], ["h2"]),
        helper.make_node("Relu", ["h2"], ["h3"]),
        helper.make_node("MatMul", ["h3", "w2"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
        helper.make_node("ArgMax", ["probabilities"], ["code"], axis=1),
    ]
    known = {"w1": floats(FEATURES, 32), "b1": floats(32), "w2": floats(32, CLASSES) / 4}
    return nodes, known


def forest(labels: dict[str, Any]) -> onnx.NodeProto:
    """One stump for each feature, which votes for two classes."""
    leaves = [t for t in range(FEATURES) for _ in (1, 2)]
    return ml(
        "TreeEnsembleClassifier",
        ["s"],
        ["label", "probabilities"],
        nodes_treeids=[t for t in range(FEATURES) for _ in range(3)],
        nodes_nodeids=[0, 1, 2] * FEATURES,
        nodes_featureids=[t for t in range(FEATURES) for _ in range(3)],
        nodes_values=[0.25, 0.0, 0.0] * FEATURES,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * FEATURES,
        nodes_truenodeids=[1, 0, 0] * FEATURES,
        nodes_falsenodeids=[2, 0, 0] * FEATURES,
        class_treeids=leaves,
        class_nodeids=[1, 2] * FEATURES,
        class_ids=[(t + side) % CLASSES for t in range(FEATURES) for side in (0, 1)],
        class_weights=[1 / FEATURES] * (2 * FEATURES),
        post_transform="NONE",
        **labels,
    )


def model_of(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    known: dict[str, np.ndarray],
    batch: int | str = "n",
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", FLOAT, [batch, FEATURES])
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in known.items()]
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model


def tensor(name: str, element: int, *dims: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, dims)


def maps(name: str, key: int) -> onnx.ValueInfoProto:
    """A sequence of maps from labels to floats."""
    value = helper.make_tensor_type_proto(FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    return helper.make_value_info(name, kind)


PROBABILITIES = tensor("probabilities", FLOAT, "n", CLASSES)
INTEGER_LABEL, STRING_LABEL = tensor("label", INTEGER, "n"), tensor("label", STRING, "n")
NUMBERED, WORDED = {"classlabels_int64s": [4, 5, 9]}, {"classlabels_strings": WORDS}


def of_network(labels: np.ndarray, is_mapped: bool = False) -> onnx.ModelProto:
    """Scaler, network, label of a table, and a map of probabilities if asked for."""
    nodes, known = network()
    nodes = [scaler(), *nodes, ml("ArrayFeatureExtractor", ["labels", "code"], ["row"])]
    nodes.append(helper.make_node("Reshape", ["row", "flat"], ["label"]))
    kind = STRING if labels.dtype == object else INTEGER
    outputs = [tensor("label", kind, "n"), PROBABILITIES]
    if is_mapped:
        table = WORDED if kind == STRING else NUMBERED
        nodes.append(ml("ZipMap", ["probabilities"], ["mapped"], **table))
        outputs.append(maps("mapped", kind))
    known = {**known, "labels": labels, "flat": np.array([-1], np.int64)}
    return model_of(nodes, outputs, known)


def linear(labels: dict[str, Any], output: onnx.ValueInfoProto) -> onnx.ModelProto:
    """Scaler, LinearClassifier, Normalizer."""
    coefficients = floats(CLASSES, FEATURES).reshape(-1).tolist()
    nodes = [
        scaler(),
        ml(
            "LinearClassifier",
            ["s"],
            ["label", "raw"],
            coefficients=coefficients,
            intercepts=[0.1, 0.2, 0.3],
            post_transform="LOGISTIC",
            **labels,
        ),
        ml("Normalizer", ["raw"], ["probabilities"], norm="L1"),
    ]
    return model_of(nodes, [output, PROBABILITIES], {})


def trees_between() -> onnx.ModelProto:
    """A forest between arithmetic on both sides."""
    nodes, known = network()
    nodes[0].input[0] = "votes"
    known["w1"] = floats(CLASSES, 32)
    forest_node = forest(NUMBERED)
    forest_node.output[1] = "votes"
    return model_of([scaler(), forest_node, *nodes], [INTEGER_LABEL, PROBABILITIES], known)


MODELS = {
    "network": of_network(np.array([4, 5, 9])),
    "network-map": of_network(np.array([4, 5, 9]), is_mapped=True),
    "network-strings": of_network(np.array(WORDS, object)),
    "network-strings-map": of_network(np.array(WORDS, object), is_mapped=True),
    "linear": linear({"classlabels_ints": [4, 5, 9]}, INTEGER_LABEL),
    "linear-strings": linear(WORDED, STRING_LABEL),
    "forest": model_of([scaler(), forest(NUMBERED)], [INTEGER_LABEL, PROBABILITIES], {}),
    "forest-strings": model_of([scaler(), forest(WORDED)], [STRING_LABEL, PROBABILITIES], {}),
    "forest-between": trees_between(),
}
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def check(compiled: Any, model: onnx.ModelProto, batch: int, tolerance: float) -> None:
    """Check declarations and results against onnxruntime's."""
    x = samples(batch, seed=batch)
    for value, expected in zip(
        compiled.run(None, {"x": x}), by_onnxruntime(model, {"x": x}), strict=True
    ):
        if isinstance(expected, list):
            assert [entry.keys() for entry in value] == [entry.keys() for entry in expected]
            value, expected = ([list(e.values()) for e in maps] for maps in (value, expected))
            np.testing.assert_allclose(value, expected, atol=tolerance)
        elif expected.dtype == np.float32:
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(value, expected, atol=tolerance)
        else:
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            assert np.mean(value != expected) <= tolerance


@each_model
def test_float_models_agree_with_onnxruntime(model: onnx.ModelProto) -> None:
    compiled = qg.compile(model)
    for batch in (1, 4, 9):
        check(compiled, model, batch, 1e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("threads", "name"), covering([1, 2, 3], [*MODELS]))
def test_int8_models_agree_with_onnxruntime(threads: int, name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    compiled = qg.quantize_and_compile(
        model, [samples(2, seed=i) for i in range(8)], num_threads=threads
    )
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=threads)
    for batch in (1, 4, 9):
        check(compiled, model, batch, 0.12)
        x = samples(batch, seed=batch)
        for one, other in zip(
            compiled.run(None, {"x": x}), loaded.run(None, {"x": x}), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@each_model
def test_inputs_and_outputs_are_those_that_the_model_declares(model: onnx.ModelProto) -> None:
    compiled, session = qg.compile(model), onnxruntime.InferenceSession(model.SerializeToString())
    for ours, theirs in (
        (compiled.get_inputs(), session.get_inputs()),
        (compiled.get_outputs(), session.get_outputs()),
    ):
        assert [(i.name, i.shape, i.type) for i in ours] == [
            (i.name, i.shape, i.type) for i in theirs
        ]


FALLBACK = {
    "network": set(),
    "network-map": {"ZipMap"},
    "network-strings": {"ArrayFeatureExtractor", "Reshape"},
    "network-strings-map": {"ArrayFeatureExtractor", "Reshape", "ZipMap"},
    "linear": set(),
    "linear-strings": {"LabelEncoder"},
    "forest": {"TreeEnsembleClassifier"},
    "forest-strings": {"TreeEnsembleClassifier", "LabelEncoder"},
    "forest-between": {"TreeEnsembleClassifier"},
}


@pytest.mark.parametrize("name", MODELS)
def test_only_what_is_no_arithmetic_runs_in_onnxruntime(name: str) -> None:
    compiled = qg.quantize_and_compile(MODELS[name], [samples(2)], verify=False).report.fallback
    assert {node.op.removeprefix("ai.onnx.ml.") for node in compiled} == FALLBACK[name]
    assert all(node.reason for node in compiled)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["network", "network-strings-map", "forest-between"])
def test_products_are_int8(name: str) -> None:
    compiled = qg.quantize_and_compile(MODELS[name], [samples(2, seed=i) for i in range(4)])
    products = [node for node in compiled.graph.nodes if node.op == "Gemm"]
    assert len(products) == 2
    assert all(node.operands[0].type.quant is not None for node in products)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["network-strings", "network-strings-map", "forest-between"])
def test_outputs_that_are_numbers_are_compared(name: str) -> None:
    compiled = qg.quantize_and_compile(MODELS[name], [samples(2, seed=i) for i in range(4)])
    kinds = {info.name: info.type for info in compiled.get_outputs()}
    numbers = [n for n, kind in kinds.items() if kind in ("tensor(float)", "tensor(int64)")]
    assert numbers and [output.name for output in compiled.report.outputs] == numbers


@pytest.mark.slow
def test_words_alone_are_not_compared() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(MODELS["network-strings"])
    del model.graph.output[1:]
    report = qg.quantize_and_compile(model, [samples(2, seed=i) for i in range(4)]).report
    assert NO_OUTPUT_OF_NUMBERS in report.notes


def test_features_are_scaled_before_they_are_rounded() -> None:
    """Features of different ranges would share the 256 steps of the widest otherwise."""
    compiled = qg.quantize_and_compile(MODELS["network"], [samples(2, seed=i) for i in range(8)])
    first = next(layer for layer in compiled.report.layers if layer.op == "MatMul")
    assert first.sqnr_local_db is not None and first.sqnr_local_db > 25
