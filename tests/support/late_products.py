"""Models with products behind NonZero, whose weights only late parts read."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE, INNER = 48, 160


def late_products() -> onnx.ModelProto:
    """Rows of ``x`` that are chosen by its first column, through two layers; the mean of all rows
    goes through one of them, too, whether any is chosen or not.
    """
    rng = np.random.default_rng(0)
    arrays = {
        "w0": rng.normal(size=(SIZE, SIZE)) / SIZE**0.5,
        "w1": rng.normal(size=(SIZE, INNER)) / SIZE**0.5,
        "w2": rng.normal(size=(INNER, SIZE)) / INNER**0.5,
    }
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    integers = {"first": np.array(0), "flat": np.array([-1])}
    tensors += [numpy_helper.from_array(a.astype(np.int64), n) for n, a in integers.items()]
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["h"]),
        node("Gather", ["x", "first"], ["scores"], axis=1),
        node("Relu", ["scores"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Reshape", ["places", "flat"], ["rows"]),
        node("Gather", ["h", "rows"], ["chosen"], axis=0),
        node("MatMul", ["chosen", "w1"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w2"], ["y"]),
        node("ReduceMean", ["h"], ["mean"], axes=[0], keepdims=1),
        node("Concat", ["chosen", "mean"], ["more"], axis=0),
        node("MatMul", ["more", "w1"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["found", SIZE])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["more", INNER])
    graph = helper.make_graph(nodes, "g", [x], [y, z], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def chosen_rows(count: int, seed: int) -> np.ndarray:
    """32 rows of which ``count`` are chosen."""
    x = np.random.default_rng(seed).normal(size=(32, SIZE)).astype(np.float32)
    x[:, 0] = np.where(np.arange(32) < count, 1, -1)
    return x


def late_stages(count: int) -> onnx.ModelProto:
    """Rows of ``x`` that are chosen by one column after the other, each time through a layer."""
    node, rng = helper.make_node, np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"flat": np.array([-1])}
    nodes, rows = [node("MatMul", ["x", "w"], ["h"])], "h"
    for k in range(count + 1):
        arrays[f"w{k}" if k else "w"] = rng.normal(size=(SIZE, SIZE)).astype(np.float32) / 7
        arrays[f"column{k}"] = np.array(k)
    for k in range(1, count + 1):
        nodes += [
            node("Gather", [rows, f"column{k}"], [f"scores{k}"], axis=1),
            node("Greater", [f"scores{k}", "least"], [f"good{k}"]),
            node("NonZero", [f"good{k}"], [f"places{k}"]),
            node("Reshape", [f"places{k}", "flat"], [f"rows{k}"]),
            node("Gather", [rows, f"rows{k}"], [f"chosen{k}"], axis=0),
            node("MatMul", [f"chosen{k}", f"w{k}"], [f"y{k}"]),
        ]
        rows = f"y{k}"
    arrays["least"] = np.array(-2, np.float32)
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIZE])
    y = helper.make_tensor_value_info(rows, TensorProto.FLOAT, ["chosen", SIZE])
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
