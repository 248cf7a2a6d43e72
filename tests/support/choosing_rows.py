"""A model of which only some rows, known at run time, go through its second half."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.support.arrays import Array
from tests.support.deformable import weights

WIDTH = 16
LAYERS = {"w": (WIDTH, 32), "w2": (32, 64), "w3": (64, 64), "w4": (64, 8)}


def choosing_rows(rows: Any, heavy: bool = True, again: bool = False) -> onnx.ModelProto:
    """Rows whose layer has a mean above 0 go through two more; ``y`` has their results, ``chosen``
    their positions, ``shape`` the sizes of what was chosen.

    Without ``heavy``, the second half has no products.  ``again``: of the results, rows are chosen
    once more, for one more product (``z``).
    """
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        *positions("h", "chosen"),
        node("Gather", ["r", "chosen"], ["rows"]),
        node("Shape", ["rows"], ["shape"]),
    ]
    if heavy:
        nodes += [node("Gemm", ["rows", "w2"], ["t"]), node("Relu", ["t"], ["u"])]
        nodes += [node("Gemm", ["u", "w3"], ["y"])]
    else:
        nodes += [node("Tanh", ["rows"], ["y"])]
    if again:
        nodes += [*positions("y", "better"), node("Gather", ["y", "better"], ["best"])]
        nodes += [node("Gemm", ["best", "w4"], ["z"])]
    kinds = {"y": TensorProto.FLOAT, "shape": TensorProto.INT64, "chosen": TensorProto.INT64}
    dims: dict[str, Any] = {"y": None, "shape": [2], "chosen": [None]}
    if again:
        kinds["z"], dims["z"] = TensorProto.FLOAT, None
    known = {name: weights(*LAYERS[name], seed=i, scale=0.2) for i, name in enumerate(LAYERS)}
    known |= {"zero": np.float32(0), "axis": np.zeros(1, np.int64)}
    read = {name for item in nodes for name in item.input}
    graph = helper.make_graph(
        nodes,
        "choosing rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, WIDTH])],
        [helper.make_tensor_value_info(name, kinds[name], dims[name]) for name in kinds],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items() if n in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def positions(values: str, name: str) -> list[onnx.NodeProto]:
    """The positions of rows whose mean is above 0."""
    node = helper.make_node
    return [
        node("ReduceMean", [values], [f"{name}:mean"], axes=[1], keepdims=0),
        node("Greater", [f"{name}:mean", "zero"], [f"{name}:kept"]),
        node("NonZero", [f"{name}:kept"], [f"{name}:found"]),
        node("Squeeze", [f"{name}:found", "axis"], [name]),
    ]


def rows_of(count: int, seed: int = 0) -> Array:
    """As many random rows."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(count, WIDTH)), np.float32)
