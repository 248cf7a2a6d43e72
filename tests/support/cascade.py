"""A detector of two stages: boxes of one network are cut out of the image for another one.

NonMaxSuppression chooses boxes by the scores of a convolution; RoiAlign cuts them out; convolutions
score them again, and NonMaxSuppression chooses among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.support.arrays import Array
from tests.support.deformable import weights

KNOWN: dict[str, Any] = {
    "w": weights(8, 3, 3, 3, seed=1, scale=0.3),
    "ws": weights(1, 8, 3, 3, seed=2, scale=0.3),
    "v": weights(16, 3, 3, 3, seed=3, scale=0.3),
    "vs": weights(5, 16 * 9, seed=4, scale=0.1),
    "cell": np.array([0, 0, 12, 12], np.float32),
    "two": np.float32(2),
    "zero": np.int64(0),
    "one": np.int64(1),
    "third": np.int64(2),
    "row": np.array([1, 1, -1], np.int64),
    "all boxes": np.array([1, -1, 4], np.int64),
    "boxes in rows": np.array([-1, 4], np.int64),
    "crossed": np.array([1, 0, 3, 2], np.int64),
    "most": np.array([12], np.int64),
    "overlap": np.array([0.4], np.float32),
    "least": np.array([0.6], np.float32),
    "last": np.array([4], np.int64),
}


def grid() -> list[onnx.NodeProto]:
    """The box of each cell of the scores ``s``."""
    node = helper.make_node
    built = [node("Shape", ["s"], ["sizes"])]
    for name, number, axis in (("y", "third", 1), ("x", "last axis", 0)):
        built += [
            node("Gather", ["sizes", number], [f"{name} count"]),
            node("Range", ["zero", f"{name} count", "one"], [f"{name} cells"]),
            node("Cast", [f"{name} cells"], [f"{name} floats"], to=TensorProto.FLOAT),
            node("Mul", [f"{name} floats", "two"], [f"{name} pixels"]),
            node("Unsqueeze", [f"{name} pixels"], [f"{name} line"], axes=[axis]),
        ]
    built += [node("Shape", [f"{n} line"], [f"{n} shape"]) for n in "yx"]
    built += [node("Max", ["y shape", "x shape"], ["grid"])]
    for name in "yx":
        built += [node("Expand", [f"{name} line", "grid"], [f"{name} grid"])]
        built += [node("Unsqueeze", [f"{name} grid"], [f"{name} part"], axes=[2])]
    corner = node("Concat", ["y part", "x part"] * 2, ["corners"], axis=2)
    return [*built, corner, node("Add", ["corners", "cell"], ["cells"])]


def first_stage() -> list[onnx.NodeProto]:
    """x -> ``r``, its features, and ``regions`` [K, 4] of the image with ``image`` [K, 1] that
    NonMaxSuppression chooses."""
    node = helper.make_node
    return [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "ws"], ["d"], pads=[1] * 4),
        node("Sigmoid", ["d"], ["s"]),
        node("Reshape", ["s", "row"], ["scores"]),
        *grid(),
        node("Reshape", ["cells", "all boxes"], ["boxes"]),
        node("Reshape", ["cells", "boxes in rows"], ["rows"]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        node("Gather", ["chosen", "third"], ["index"], axis=1),
        node("Gather", ["chosen", "zero"], ["image"], axis=1),
        node("Gather", ["rows", "index"], ["picked"]),
        node("Gather", ["picked", "crossed"], ["regions"], axis=1),
    ]


def cascade() -> onnx.ModelProto:
    """The detector of images ``x`` of any height and width; ``final`` has boxes, ``z`` the scores
    of all boxes that the first stage chose."""
    node, around = helper.make_node, {"pads": [1] * 4, "strides": [2, 2]}
    nodes = [
        *first_stage(),
        node("RoiAlign", ["x", "regions", "image"], ["crops"], output_height=6, output_width=6),
        node("Conv", ["crops", "v"], ["e"], **around),
        node("Relu", ["e"], ["f"]),
        node("Flatten", ["f"], ["g"]),
        node("Gemm", ["g", "vs"], ["h"], transB=1),
        node("Sigmoid", ["h"], ["z"]),
        node("Gather", ["z", "last"], ["again"], axis=1),
        node("Reshape", ["again", "row"], ["better"]),
        node("Unsqueeze", ["picked"], ["candidates"], axes=[0]),
        node("NonMaxSuppression", ["candidates", "better", "most", "overlap"], ["kept"]),
        node("Gather", ["kept", "third"], ["places"], axis=1),
        node("Gather", ["picked", "places"], ["final"]),
    ]
    known = {**KNOWN, "last axis": np.int64(3)}
    graph = helper.make_graph(
        nodes,
        "cascade",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "H", "W"])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("final", "z")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


def picture(height: int, width: int, seed: int = 0) -> Array:
    """A random image."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(1, 3, height, width)), np.float32)
