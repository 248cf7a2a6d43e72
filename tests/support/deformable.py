"""A network with an operator of onnxruntime between two parts that are compiled."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantglow.support.arrays import Array


def weights(*shape: int, seed: int, scale: float) -> Array:
    """Random weights."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=shape) * scale, np.float32)


def deformable() -> onnx.ModelProto:
    """Convolutions around a DeformConv of stride 2; batch, height and width are free."""
    known = {
        "w": weights(8, 3, 3, 3, seed=1, scale=0.2),
        "wo": weights(18, 8, 3, 3, seed=2, scale=0.05),
        "wd": weights(8, 8, 3, 3, seed=3, scale=0.1),
        "w2": weights(4, 8, 3, 3, seed=4, scale=0.1),
    }
    around, apart = {"pads": [1] * 4}, {"pads": [1] * 4, "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], **around),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "wo"], ["offsets"], **apart),
        helper.make_node("DeformConv", ["r", "wd", "offsets"], ["d"], **apart),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "w2"], ["y"], **around),
    ]
    float_type = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "deformable",
        [helper.make_tensor_value_info("x", float_type, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info("y", float_type, None)],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
