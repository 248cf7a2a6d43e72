"""The share of int8 in all multiply-accumulates, of networks whose products are counted by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.evaluation.int8_share import PROFILE_SHAPES, Int8Share, count_text
from quantglow.report import Report
from tests.support.attending_loop import WIDTH, attending_loop, feeds_of
from tests.support.late_products import INNER, SIZE, chosen_rows, late_products

FAST: dict[str, Any] = {"num_threads": 1, "progress": False, "effort": "fast"}
FLOAT = TensorProto.FLOAT
node, value = helper.make_node, helper.make_tensor_value_info


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    known: dict[str, Any],
    opset: int = 13,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, FLOAT, shape) for name, shape in inputs.items()],
        [value(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def share_of(model: onnx.ModelProto, samples: Any, **options: Any) -> Int8Share:
    report = qg.quantize_and_compile(model, samples, **FAST, **options).report
    assert report.int8_share is not None, report.notes
    return report.int8_share


def convolutions() -> onnx.ModelProto:
    """[1, 3, 8, 8] -> 16 channels 3x3, depthwise 3x3 with stride 2, 10 classes."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "d"], ["e"], pads=[1] * 4, strides=[2, 2], group=16),
        node("Relu", ["e"], ["s"]),
        node("Flatten", ["s"], ["f"]),
        node("Gemm", ["f", "m"], ["y"], transB=1),
    ]
    known = {"w": array(16, 3, 3, 3), "d": array(16, 1, 3, 3), "m": array(10, 256)}
    return model_of(nodes, {"x": [1, 3, 8, 8]}, ["y"], known)


FIRST, DEPTHWISE, LAST = 64 * 16 * 27, 16 * 16 * 9, 256 * 10


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("options", "int8"),
    [
        ({}, FIRST + DEPTHWISE + LAST),
        ({"nodes_to_exclude": ["y"]}, FIRST + DEPTHWISE),
        ({"int16_activations": ["r"]}, FIRST + LAST),
    ],
    ids=["all", "a float layer", "an int16 activation"],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_compiled_model_is_counted_by_its_types(
    options: dict[str, Any], int8: int, verify: bool
) -> None:
    samples = [array(1, 3, 8, 8, seed=i) for i in range(4)]
    share = share_of(convolutions(), samples, verify=verify, **options)
    assert share == Int8Share(int8, FIRST + DEPTHWISE + LAST)


def test_a_profile_has_the_shapes_of_a_model() -> None:
    profile = qg.profile(convolutions(), [array(1, 3, 8, 8)], progress=False)
    assert share_of(convolutions(), profile).basis == PROFILE_SHAPES


def tail_products(rows: int, chosen: int) -> tuple[int, int]:
    """Products of ``late_products`` in its head, and behind NonZero."""
    return rows * SIZE * SIZE, (chosen + chosen + 1) * SIZE * INNER + chosen * INNER * SIZE


@pytest.mark.slow
def test_a_late_part_in_int8_counts_at_the_size_that_the_sample_leads_to() -> None:
    samples = [[{"x": chosen_rows(5, seed)}] for seed in range(4)]
    model = late_products()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 32
    share = share_of(model, [sample for (sample,) in samples])
    head, tail = tail_products(32, 5)
    assert share == Int8Share(head + tail, head + tail)


@pytest.mark.slow
def test_a_late_part_that_no_sample_reaches_counts_as_it_runs() -> None:
    """A row of zeros, the mean of nothing, is multiplied in int8 all the same."""
    model = late_products()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 32
    samples = [{"x": chosen_rows(0, seed)} for seed in range(3)]
    head, _ = tail_products(32, 0)
    mean = SIZE * INNER
    assert share_of(model, samples) == Int8Share(head + mean, head + mean)


def test_without_a_run_a_late_part_counts_at_the_size_of_a_sample() -> None:
    samples = [{"x": chosen_rows(4, seed)} for seed in range(3)]
    compiled = qg.quantize_and_compile(late_products(), samples, verify=False, **FAST)
    head, tail = tail_products(1, 1)  # a row is a sample of this model
    assert compiled.report.int8_share == Int8Share(head + tail, head + tail)


@pytest.mark.slow_variants
@pytest.mark.parametrize("trips", [6, None], ids=["constant trips", "computed trips"])
def test_each_trip_of_a_loop_counts_at_its_size(trips: int | None) -> None:
    model = attending_loop(trips, behind=True, start=3)
    samples = [feeds_of(model, seed, trips=6) for seed in range(4)]
    if trips is not None:
        samples = [feeds_of(model, seed) for seed in range(4)]
    lengths = range(4, 10)
    layers, attention = 6 * 4 * WIDTH**2, sum(2 * WIDTH * length for length in lengths)
    total = layers + attention + 6 * WIDTH**2
    assert share_of(model, samples) == Int8Share(total, total)


def conditional_loop() -> onnx.ModelProto:
    """x @ w until the number of a trip reaches ``stop``, which the sample decides."""
    body = helper.make_graph(
        [
            node("MatMul", ["now", "w"], ["product"]),
            node("Tanh", ["product"], ["next"]),
            node("Less", ["trip", "stop"], ["on"]),
        ],
        "body",
        [
            value("trip", TensorProto.INT64, []),
            value("holds", TensorProto.BOOL, []),
            value("now", FLOAT, [1, 8]),
        ],
        [value("on", TensorProto.BOOL, []), value("next", FLOAT, [1, 8])],
    )
    nodes = [node("Loop", ["", "true", "x"], ["y"], body=body)]
    model = model_of(nodes, {"x": [1, 8]}, ["y"], {"w": array(8, 8), "true": np.array(True)})
    model.graph.input.append(value("stop", TensorProto.INT64, []))
    return model


@pytest.mark.slow_variants
@pytest.mark.parametrize("stop", [0, 3])
def test_a_loop_that_a_condition_ends_counts_the_trips_of_the_sample(stop: int) -> None:
    samples = [{"x": array(1, 8, seed=i), "stop": np.array(stop)} for i in range(3)]
    assert share_of(conditional_loop(), samples).total == (stop + 1) * 64


def branches() -> onnx.ModelProto:
    """x @ w [8, 8] where the first value is positive, else x @ u @ v."""

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [value(name, FLOAT, [1, 8])])

    then = branch("then", [node("MatMul", ["x", "w"], ["then"])])
    other = branch(
        "else", [node("MatMul", ["x", "u"], ["inner"]), node("MatMul", ["inner", "v"], ["else"])]
    )
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["is positive"]),
        node("If", ["is positive"], ["y"], then_branch=then, else_branch=other),
    ]
    known = {"w": array(8, 8), "u": array(8, 32), "v": array(32, 8), "zero": np.float32(0)}
    return model_of(nodes, {"x": [1, 8]}, ["y"], known)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("sign", "total"), [(1, 64), (-1, 512)])
def test_only_the_branch_that_the_sample_takes_counts(sign: int, total: int) -> None:
    samples = [sign * np.abs(array(1, 8, seed=i)) for i in range(3)]
    assert share_of(branches(), samples).total == total


def test_operators_of_onnxruntime_within_a_graph_are_not_int8() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Det", ["square"], ["d"]),
        node("Einsum", ["a", "a"], ["square"], equation="ij,kj->ik"),
        node("Add", ["a", "d"], ["y"]),
    ]
    nodes = [nodes[0], nodes[2], nodes[1], nodes[3]]
    samples = [array(4, 16, seed=i) for i in range(3)]
    model = model_of(nodes, {"x": [4, 16]}, ["y"], {"w": array(16, 16)})
    share = share_of(model, [{"x": sample} for sample in samples])
    assert share.total == 4 * 16 * 16 + 4 * 4 * 16


@pytest.mark.slow
def test_weights_in_groups_are_not_int8_with_float_activations() -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], {"x": [2, 64]}, ["y"], {"w": array(64, 8)}
    )
    samples = [{"x": array(2, 64, seed=i)} for i in range(3)]
    for activations, int8 in (("float", 0), ("dynamic", 2 * 64 * 8)):
        options = {"weights": "int4", "group_size": 32, "activations": activations}
        assert share_of(model, samples, **options) == Int8Share(int8, 2 * 64 * 8)


def test_the_report_says_the_share_in_text_html_and_json() -> None:
    samples = [array(1, 3, 8, 8, seed=i) for i in range(3)]
    report = qg.quantize_and_compile(convolutions(), samples, nodes_to_exclude=["y"], **FAST).report
    text = "int8: 92.1 % of multiply-accumulates (of 32.5 k for the first sample)"
    assert text in str(report) and text in report._repr_html_() and text in report.to_html()
    data = json.loads(json.dumps(report.to_json()))
    assert data["int8_share"]["int8"] == FIRST + DEPTHWISE
    assert Report.from_json(data).int8_share == report.int8_share


def test_a_report_of_a_former_version_has_no_share() -> None:
    data = dict(qg.compile(convolutions()).report.to_json())
    del data["int8_share"]
    report = Report.from_json(data)
    assert report.int8_share is None and "multiply-accumulates" not in str(report)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (1_230_000_000, "1.23 G")]
)
def test_counts_have_three_digits(count: int, text: str) -> None:
    assert count_text(count) == text


def test_a_model_without_products_has_a_share_of_0() -> None:
    assert Int8Share(0, 0).share == 0


def test_all_that_is_shown_as_100_percent_is_int8() -> None:
    assert "99.9 %" in str(Int8Share(99_999, 100_000)) and "100.0 %" in str(Int8Share(9, 9))
