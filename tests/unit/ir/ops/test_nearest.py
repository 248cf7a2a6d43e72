"""Resize takes the row that onnxruntime takes, in the middle between two, too."""

from __future__ import annotations

import numpy as np
import onnxruntime
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import quantglow as qg

ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@given(
    st.integers(2, 40), st.integers(1, 40), st.sampled_from(ROUNDINGS), st.sampled_from(COORDINATES)
)
def test_the_nearest_row_is_that_of_onnxruntime(
    length: int, size: int, rounding: str, coordinates: str
) -> None:
    resize = helper.make_node(
        "Resize",
        ["x", "", "", "sizes"],
        ["y"],
        mode="nearest",
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )
    graph = helper.make_graph(
        [resize],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, length])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("sizes", TensorProto.INT64, [3], [1, 1, size])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    feeds = {"x": np.arange(length, dtype=np.float32).reshape(1, 1, length)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, feeds)
    (actual,) = qg.interpret(qg.import_model(model), feeds)
    np.testing.assert_array_equal(actual, expected)
