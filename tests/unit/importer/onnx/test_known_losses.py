"""A loss of known operands is computed as the same loss at run time."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

LOGITS = np.array([[-1e9, 0.3], [-200, 0.5], [1, 2]], np.float32)
"""The power of a logit far below the largest one is 0; its logarithm is not."""


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_of_known_logits_are_those_at_run_time(reduction: str) -> None:
    node = helper.make_node(
        "SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], reduction=reduction
    )
    labels = numpy_helper.from_array(np.zeros(3, np.int64), "labels")
    known = numpy_helper.from_array(LOGITS, "logits")
    x = helper.make_tensor_value_info("logits", TensorProto.FLOAT, LOGITS.shape)
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [3] * (reduction == "none"))
    opsets = [helper.make_opsetid("", 17)]
    later, folded = (
        helper.make_model(
            helper.make_graph([node], "g", inputs, [loss], arrays),
            opset_imports=opsets,
            ir_version=8,
        )
        for inputs, arrays in (([x], [labels]), ([], [labels, known]))
    )
    feeds = {"logits": LOGITS}
    (expected,) = qg.compile(later, num_threads=1).run(None, feeds)
    (value,) = qg.compile(folded, num_threads=1).run(None, {})
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_allclose(value, by_onnxruntime(later, feeds)[0], rtol=1e-6)
