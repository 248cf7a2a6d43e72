"""A decoder block in an ONNX Loop: each trip attends to the states of all trips before.

All weights are drawn.  One trip has attention with 4 heads and a feed-forward layer that is four
times as wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, HIDDEN = 256, 4, 4
"""Sizes of the state; the last is how often the hidden layer is as wide."""
SHAPES = {
    **dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)),
    "w1": (WIDTH, HIDDEN * WIDTH),
    "w2": (HIDDEN * WIDTH, WIDTH),
}
INPUTS: dict[str, tuple[int, ...]] = dict.fromkeys(("state", "keys0", "values0"), (1, 1, WIDTH))


def model(trips: int) -> onnx.ModelProto:
    """The loop, and a layer on the states of all trips: ``y``."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [
            *(node("MatMul", ["now", f"w{x}"], [x]) for x in "qkv"),
            node("Concat", ["keys", "k"], ["all keys"], axis=1),
            node("Concat", ["values", "v"], ["all values"], axis=1),
            node("Reshape", ["q", "split"], ["q apart"]),
            node("Reshape", ["all keys", "split"], ["k apart"]),
            node("Reshape", ["all values", "split"], ["v apart"]),
            node("Transpose", ["q apart"], ["q heads"], perm=[0, 2, 1, 3]),
            node("Transpose", ["k apart"], ["k heads"], perm=[0, 2, 3, 1]),
            node("Transpose", ["v apart"], ["v heads"], perm=[0, 2, 1, 3]),
            node("MatMul", ["q heads", "k heads"], ["products"]),
            node("Mul", ["products", "scale"], ["scaled"]),
            node("Softmax", ["scaled"], ["shares"], axis=-1),
            node("MatMul", ["shares", "v heads"], ["found"]),
            node("Transpose", ["found"], ["turned"], perm=[0, 2, 1, 3]),
            node("Reshape", ["turned", "merge"], ["merged"]),
            node("MatMul", ["merged", "wo"], ["out"]),
            node("Add", ["out", "now"], ["sum"]),
            node("MatMul", ["sum", "w1"], ["wide"]),
            node("Relu", ["wide"], ["positive"]),
            node("MatMul", ["positive", "w2"], ["narrow"]),
            node("Tanh", ["narrow"], ["next"]),
            node("Identity", ["holds"], ["on"]),
        ],
        "trip",
        [value("trip", TensorProto.INT64, []), value("holds", TensorProto.BOOL, [])]
        + [value(name, TensorProto.FLOAT, None) for name in ("now", "keys", "values")],
        [value("on", TensorProto.BOOL, [])]
        + [
            value(name, TensorProto.FLOAT, None)
            for name in ("next", "all keys", "all values", "next")
        ],
    )
    nodes = [
        node("Loop", ["trips", "", *INPUTS], ["last", "k1", "v1", "states"], body=body),
        node("MatMul", ["states", "wo"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    known: dict[str, Any] = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    known |= {"split": np.array([1, -1, HEADS, WIDTH // HEADS]), "merge": np.array([1, 1, WIDTH])}
    known |= {"scale": np.float32((WIDTH // HEADS) ** -0.5), "trips": np.array(trips)}
    graph = helper.make_graph(
        nodes,
        "attending",
        [value(name, TensorProto.FLOAT, shape) for name, shape in INPUTS.items()],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
