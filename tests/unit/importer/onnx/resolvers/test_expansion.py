"""Operators that the standard defines by others are imported as their definition, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.support.errors import UnsupportedOpError
from tests.unit.importer.onnx.onnx_models import Const, by_onnxruntime, floats, single

LABELS = Const(np.array([[0, 2, 1, 2], [1, 1, 0, 2]]))


def test_a_definition_computes_what_onnxruntime_computes() -> None:
    model, feeds = single("SoftmaxCrossEntropyLoss", floats(2, 3, 4), LABELS, opset=13)
    (actual,), (expected,) = interpret(import_model(model), feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_the_values_of_a_definition_are_named_after_its_result() -> None:
    model, _ = single("SoftmaxCrossEntropyLoss", floats(2, 3, 4), LABELS, opset=13)
    names = [node.name for node in import_model(model).compute_nodes()]
    assert names[-1] == "y"
    assert all(name.startswith("y:") for name in names[:-1])


def test_a_definition_that_cannot_be_imported_is_refused_as_one_operator() -> None:
    model, _ = single("Bernoulli", floats(2), opset=15)
    with pytest.raises(UnsupportedOpError, match=r"(?s)Bernoulli.*definition.*RandomUniformLike"):
        import_model(model)
