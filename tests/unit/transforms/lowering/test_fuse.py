"""Element-wise chains become one Elementwise, or one RowMap where sums of rows are among them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of

node = helper.make_node


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_softmax_of_positions_keeps_their_comparison_apart(axis: int) -> None:
    """Hardmax compares positions, which are int64; RowMap has none."""
    nodes = [node("Hardmax", ["x"], ["h"], axis=axis), node("Softmax", ["h"], ["y"], axis=axis)]
    feeds = {"x": floats(4, 9)}
    model = model_of(nodes, feeds, ["y"], opset=13)
    (actual,), (expected,) = qg.compile(model).run(None, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
