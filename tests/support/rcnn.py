"""A small Mask R-CNN: boxes of a convolution's scores are cut out of its features for a head of
products, and those that this accepts again for a head of convolutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.cascade import KNOWN, first_stage
from tests.support.deformable import weights

HEADS: dict[str, Any] = {
    "fc6": weights(128, 16 * 25, seed=5, scale=0.05),
    "fc7": weights(64, 128, seed=6, scale=0.1),
    "cls": weights(1, 64, seed=7, scale=0.3),
    "mask1": weights(64, 16, 3, 3, seed=8, scale=0.1),
    "mask2": weights(64, 32, 2, 2, seed=9, scale=0.1),
    "mask3": weights(1, 32, 1, 1, seed=10, scale=0.3),
}

OUTPUTS = ("final", "z", "masks")


def rcnn(accepted: float = 0.5) -> onnx.ModelProto:
    """The detector of images ``x`` of any height and width; ``z`` has the scores of all boxes that
    the first stage chose, ``masks`` belong to those with scores above ``accepted``."""
    node = helper.make_node
    cut: dict[str, Any] = {"spatial_scale": 0.5, "sampling_ratio": 2}
    nodes = [
        *first_stage(),
        node("RoiAlign", ["r", "regions", "image"], ["e"], output_height=5, output_width=5, **cut),
        node("Flatten", ["e"], ["f"]),
        node("Gemm", ["f", "fc6"], ["g6"], transB=1),
        node("Relu", ["g6"], ["h6"]),
        node("Gemm", ["h6", "fc7"], ["g7"], transB=1),
        node("Relu", ["g7"], ["h7"]),
        node("Gemm", ["h7", "cls"], ["logits"], transB=1),
        node("Sigmoid", ["logits"], ["z"]),
        node("Greater", ["z", "accepted"], ["is good"]),
        node("NonZero", ["is good"], ["good"]),
        node("Gather", ["good", "zero"], ["places"], axis=0),
        node("Gather", ["regions", "places"], ["final"]),
        node("Gather", ["image", "places"], ["owners"]),
        node("RoiAlign", ["r", "final", "owners"], ["k"], output_height=6, output_width=6, **cut),
        node("Conv", ["k", "mask1"], ["m1"], pads=[1] * 4),
        node("Relu", ["m1"], ["n1"]),
        node("ConvTranspose", ["n1", "mask2"], ["m2"], strides=[2, 2]),
        node("Relu", ["m2"], ["n2"]),
        node("Conv", ["n2", "mask3"], ["m3"]),
        node("Sigmoid", ["m3"], ["masks"]),
    ]
    known = {**KNOWN, **HEADS, "last axis": np.int64(3), "accepted": np.float32(accepted)}
    known |= {"w": weights(16, 3, 3, 3, seed=1, scale=0.3)}
    known |= {"ws": weights(1, 16, 3, 3, seed=2, scale=0.3)}
    read = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes,
        "rcnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "H", "W"])],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
            for n in ("final", "z", "masks")
        ],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items() if n in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
