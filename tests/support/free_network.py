"""Small networks with free dimensions, in several spellings."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES = 8, 4
SHAPES = [(1, 3, 8, 8), (1, 3, 8, 12), (2, 3, 5, 9), (3, 3, 2, 2), (1, 3, 1, 17)]


def free_model() -> onnx.ModelProto:
    """``x`` [N, 3, H, W] -> ``scores`` [N, 4], ``features`` [N, 8, H, W].

    A convolution, a depthwise one with a residual, attention over the pixels, a classifier; the
    shapes of its Reshapes are computed from that of ``x``, as torch and Paddle export them.
    """
    rng = np.random.default_rng(7)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = {
        "w1": weights(CHANNELS, 3, 3, 3),
        "b1": weights(CHANNELS),
        "w2": weights(CHANNELS, 1, 3, 3),
        "w3": weights(CHANNELS, CLASSES),
        "b3": weights(CLASSES),
        "batch": np.array([0], np.int64),
        "channels": np.array([CHANNELS], np.int64),
        "rest": np.array([-1], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], name="first"),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=CHANNELS, name="depthwise"),
        node("Add", ["c2", "r1"], ["features"]),
        node("Shape", ["features"], ["shape"]),
        node("Gather", ["shape", "batch"], ["n"]),
        node("Concat", ["n", "channels", "rest"], ["to_rows"], axis=0),
        node("Reshape", ["features", "to_rows"], ["flat"]),
        node("Transpose", ["flat"], ["rows"], perm=[0, 2, 1]),
        node("MatMul", ["rows", "flat"], ["alike"]),
        node("Softmax", ["alike"], ["attention"], axis=2),
        node("MatMul", ["attention", "rows"], ["mixed"]),
        node("ReduceMean", ["mixed"], ["mean"], axes=[1], keepdims=0),
        node("MatMul", ["mean", "w3"], ["product"]),
        node("Add", ["product", "b3"], ["scores"]),
    ]
    return _model(
        nodes,
        {"x": ["N", 3, "H", "W"]},
        {"scores": ["N", CLASSES], "features": ["N", CHANNELS, "H", "W"]},
        constants,
    )


def wide_model() -> onnx.ModelProto:
    """One pointwise convolution of 64 channels, ``x`` [N, 64, H, W] -> ``y``."""
    w = np.random.default_rng(3).standard_normal((64, 64, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="wide")]
    dims: list[str | int | None] = ["N", 64, "H", "W"]
    return _model(nodes, {"x": dims}, {"y": dims}, {"w": w})


def scaled_model() -> onnx.ModelProto:
    """A convolution over the width of ``x`` [1, 3, H, W], and another one behind it -> ``y``."""
    rng = np.random.default_rng(5)
    constants = {
        "w1": rng.standard_normal((CHANNELS, 3, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((16, CHANNELS, 3, 3)).astype(np.float32),
        "last": np.array(3, np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["sums"], pads=[1, 1, 1, 1], name="sums"),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "last"], ["width"]),
        node("Cast", ["width"], ["divisor"], to=TensorProto.FLOAT),
        node("Div", ["sums", "divisor"], ["means"]),
        node("Relu", ["means"], ["active"]),
        node("Conv", ["active", "w2"], ["y"], name="second"),
    ]
    return _model(nodes, {"x": [1, 3, "H", "W"]}, {"y": [1, 16, None, None]}, constants)


def sum_model(*dims: list[str | int | None]) -> onnx.ModelProto:
    """The sum of inputs ``x0``, ``x1``, … of these dimensions."""
    inputs = {f"x{i}": shape for i, shape in enumerate(dims)}
    nodes = [helper.make_node("Sum", list(inputs), ["y"], name="sum")]
    return _model(nodes, inputs, {"y": dims[0]}, {})


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[str | int | None]],
    outputs: dict[str, list[str | int | None]],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    def described(values: dict[str, list[str | int | None]]) -> list[onnx.ValueInfoProto]:
        make = helper.make_tensor_value_info
        return [make(name, TensorProto.FLOAT, dims) for name, dims in values.items()]

    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "free", described(inputs), described(outputs), tensors)
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model


def image(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values as after preprocessing."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
