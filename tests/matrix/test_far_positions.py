"""Positions that are fed: NaN, infinite and far ones read no byte outside of the image."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from tests.matrix.harness import assert_targets_agree
from tests.support.combinations import covering
from tests.support.guarded import guarded

FAR = np.array(
    [np.nan, np.inf, -np.inf, 1e30, -1e30, 2**31, -(2**31), 2.0**63, 1e-38, 0.3, -0.5, 1, -1],
    np.float32,
)
IMAGE, GRID = (2, 3, 5, 4), (2, 7, 8, 2)


def grid_sample(mode: str, padding: str, align: int) -> onnx.ModelProto:
    node = helper.make_node(
        "GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=align
    )
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, IMAGE), value("grid", TensorProto.FLOAT, GRID)]
    outputs = [value("y", TensorProto.FLOAT, (2, 3, 7, 8))]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    covering(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"], [0, 1]),
)
def test_grids_of_any_floats(mode: str, padding: str, align: int) -> None:
    rng = np.random.default_rng(0)
    image = rng.standard_normal(IMAGE).astype(np.float32)
    feeds = {"x": guarded(image, at_end=True), "grid": guarded(rng.choice(FAR, GRID), at_end=True)}
    assert_targets_agree(qg.import_model(grid_sample(mode, padding, align)), feeds)
