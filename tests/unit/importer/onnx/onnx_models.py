"""Models of one node, and their meaning according to onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret


@dataclass(frozen=True)
class Const:
    """An operand that is an initializer; integer operands always are."""

    array: np.ndarray


Operand = np.ndarray | Const | None


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Reproducible float32 values around zero."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def weights(*shape: int) -> Const:
    return Const(floats(*shape, seed=1))


def ints(*values: int) -> Const:
    return Const(np.array(values, np.int64))


def single(
    op_type: str, *operands: Operand, opset: int = 17, outputs: int = 1, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """(model, feeds) of one node; plain float arrays are inputs of the model."""
    names, initializers, feeds = [], [], {}
    for i, operand in enumerate(operands):
        names.append("" if operand is None else f"x{i}")
        if isinstance(operand, Const):
            initializers.append(numpy_helper.from_array(operand.array, f"x{i}"))
        elif operand is not None:
            feeds[f"x{i}"] = operand
    results = ["y", *(f"y{i}" for i in range(1, outputs))]
    node = helper.make_node(op_type, names, results, name="the_node", **attributes)
    return model_of([node], feeds, results, initializers, opset), feeds


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    results: Sequence[str],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in results]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(8, 3 + opset)
    )


def by_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], optimized: bool = False
) -> list[np.ndarray]:
    """Outputs of onnxruntime, without the instructions that overflow in 16 bits."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, dict(feeds))


def assert_agrees(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], tolerance: float = 1e-5
) -> None:
    """The imported graph is well formed, and computes what onnxruntime computes."""
    graph = import_model(model)
    graph.verify()
    ours, theirs = interpret(graph, feeds), by_onnxruntime(model, feeds)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.shape == expected.shape
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance)


def small_model() -> onnx.ModelProto:
    return single("Gemm", floats(2, 3), weights(3, 4), weights(4))[0]


IMAGE = floats(2, 4, 5, 6)
SCALAR = Const(np.array(0.5, np.float32))
