"""Multiply-accumulates of ONNX models, by the events of onnxruntime's profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.ort.products import count_products

FLOAT = TensorProto.FLOAT
node = helper.make_node


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def count(
    nodes: list[onnx.NodeProto], feeds: dict[str, Any], known: dict[str, Any], opset: int = 13
) -> int:
    """Products of a model in onnxruntime."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, FLOAT, list(x.shape)) for n, x in feeds.items()],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in nodes[-1].output if n],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return count_products(model.SerializeToString(), feeds)


@pytest.mark.parametrize(
    ("op", "shape", "weights", "attributes", "expected"),
    [
        ("MatMul", (3, 4, 5), [(5, 6)], {}, 3 * 4 * 5 * 6),
        ("MatMul", (5,), [(5, 6)], {}, 5 * 6),
        ("Gemm", (5, 4), [(6, 5)], {"transA": 1, "transB": 1}, 4 * 5 * 6),
        ("Conv", (2, 4, 6, 6), [(8, 2, 3, 3)], {"group": 2}, 2 * 8 * 16 * 18),
        ("ConvTranspose", (2, 4, 3, 3), [(4, 5, 2, 2)], {"strides": [2, 2]}, 72 * 5 * 4),
        ("LSTM", (3, 2, 6), [(1, 20, 6), (1, 20, 5)], {"hidden_size": 5}, 6 * (120 + 100)),
        ("GRU", (3, 2, 6), [(1, 15, 6), (1, 15, 5)], {"hidden_size": 5}, 6 * (90 + 75)),
        ("Einsum", (2, 3, 4), [(5, 4)], {"equation": "...ij,kj->...ik"}, 2 * 3 * 4 * 5),
        ("Einsum", (3, 4), [], {"equation": "ij->ji"}, 0),
        ("Relu", (3, 4), [], {}, 0),
    ],
)  # fmt: skip
def test_operators_of_onnxruntime_are_counted_by_shapes(
    op: str, shape: tuple[int, ...], weights: list[Any], attributes: Any, expected: int
) -> None:
    known = {f"w{i}": array(*size) for i, size in enumerate(weights)}
    nodes = [node(op, ["x", *known], ["y"], **attributes)]
    assert count(nodes, {"x": array(*shape)}, known) == expected


def test_attention_counts_scores_and_sums() -> None:
    feeds = {"q": array(2, 3, 8), "k": array(2, 5, 8), "v": array(2, 5, 8)}
    nodes = [
        node("MultiHeadAttention", [*feeds], ["y"], domain="com.microsoft", num_heads=2),
    ]
    assert count(nodes, feeds, {}) == 2 * (2 * 3 * 5 * 8)


def test_trips_of_a_loop_count_each() -> None:
    def value(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, None)

    ends = [value("on", TensorProto.BOOL), value("next", FLOAT)]
    inputs = [
        helper.make_tensor_value_info("trip", TensorProto.INT64, []),
        helper.make_tensor_value_info("holds", TensorProto.BOOL, []),
        value("now", FLOAT),
    ]
    steps = [node("MatMul", ["now", "w"], ["next"]), node("Identity", ["holds"], ["on"])]
    body = helper.make_graph(steps, "body", inputs, ends)
    known = {"trips": np.array(7), "w": array(4, 4)}
    nodes = [node("Loop", ["trips", "", "x"], ["y"], body=body)]
    assert count(nodes, {"x": array(2, 4)}, known) == 7 * 2 * 4 * 4


def test_a_model_that_does_not_run_is_refused() -> None:
    with pytest.raises(qg.QuantglowError, match="cannot profile"):
        count([node("MatMul", ["x", "w"], ["y"])], {"x": array(2, 4)}, {"w": array(3, 4)})
