"""``quantglow.backend`` is what ``onnx.backend.base`` asks for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend

import quantglow.backend as backend
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from tests.unit.importer.onnx.onnx_models import floats, model_of, single


def typed(element: int) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(n, element, [2, 3]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_it_is_a_backend() -> None:
    assert issubclass(backend.QuantglowBackend, Backend)


def test_prepared_models_take_inputs_in_order() -> None:
    x, y = floats(2, 3), floats(2, 3, seed=1)
    model = model_of([helper.make_node("Sub", ["x", "y"], ["z"])], {"x": x, "y": y}, ["z"])
    (actual,) = backend.prepare(model).run([x, y])
    np.testing.assert_array_equal(actual, x - y)


def test_a_model_runs_in_one_call() -> None:
    model, feeds = single("Relu", floats(2, 3))
    (actual,) = backend.run_model(model, feeds)
    np.testing.assert_array_equal(actual, np.maximum(feeds["x0"], 0))


def test_a_node_runs_alone() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    actual = backend.run_node(node, [floats(2, 3), floats(3)])
    np.testing.assert_array_equal(actual["c"], floats(2, 3) + floats(3))


@pytest.mark.parametrize(
    ("element", "dtype"), [(TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)]
)
def test_results_have_the_declared_type(element: int, dtype: type) -> None:
    (actual,) = backend.run_model(typed(element), [floats(2, 3).astype(dtype)])
    assert actual.dtype == dtype


def test_float64_is_not_computed_as_float32() -> None:
    tiny = np.full((2, 3), 1 + 1e-12)
    prepared = backend.prepare(typed(TensorProto.DOUBLE))
    assert isinstance(prepared.compiled, FallbackModel)
    np.testing.assert_array_equal(prepared.run([tiny])[0], tiny)


@pytest.mark.parametrize(("device", "known"), [("CPU", True), ("CPU:0", True), ("CUDA", False)])
def test_it_runs_on_processors(device: str, known: bool) -> None:
    assert backend.supports_device(device) is known


def test_empty_tensors_are_computed() -> None:
    x = np.zeros((0, 3), np.float32)
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": x}, ["y"])
    assert backend.run_model(model, [x])[0].shape == (0, 3)


def test_operators_older_than_our_importers_are_computed() -> None:
    model = single("Relu", floats(2, 3), opset=6)[0]
    np.testing.assert_array_equal(
        backend.run_model(model, [floats(2, 3)])[0], np.maximum(floats(2, 3), 0)
    )
