"""A small convolutional network as a graph and as ONNX, and data for it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def shape_of(channels: int) -> tuple[int, ...]:
    return (1, channels, 6, 6)


SHAPE = shape_of(2)


def small_model(seed: int = 0, last_op: str = "Gemm", channels: int = 2) -> onnx.ModelProto:
    """x [1, channels, 6, 6] -> Conv, Relu (output "features"), Flatten, Gemm (output "scores")."""
    rng = np.random.default_rng(seed)
    arrays = {
        "w1": rng.standard_normal((4, channels, 3, 3)),
        "b1": rng.standard_normal(4),
        "w2": rng.standard_normal((144, 3)) / 12,
        "b2": rng.standard_normal(3),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["features"]),
        helper.make_node("Flatten", ["features"], ["flat"]),
        helper.make_node(last_op, ["flat", "w2", "b2"], ["scores"]),
    ]
    outputs = {"scores": [1, 3], "features": [1, 4, 6, 6]}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape_of(channels))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def small_samples(count: int = 4, seed: int = 1, channels: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape_of(channels)).astype(np.float32) for _ in range(count)]
