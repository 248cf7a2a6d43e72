"""Operators whose results follow from integers: known at import, or decided by an input."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.support.errors import ModelError
from tests.unit.importer.onnx.onnx_models import (
    Const,
    assert_agrees,
    by_onnxruntime,
    floats,
    model_of,
    single,
)

BOUNDS = [
    np.array([0, 7, 2], np.int64),
    np.array([5, -4, -3], np.int32),
    np.array([3, 3, 1], np.int64),
    np.array([-0.5, 1.6, 0.3], np.float32),
]


def spread(bounds: np.ndarray) -> onnx.ModelProto:
    """Range of known bounds, and a shape of known length."""
    element = helper.np_dtype_to_tensor_dtype(bounds.dtype)
    operands = [Const(np.array(b)) for b in bounds]
    model, _ = single("Range", *operands, opset=13)
    model.graph.output[0].type.tensor_type.elem_type = element
    return model


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_ranges_are_as_in_onnxruntime(bounds: np.ndarray) -> None:
    model = spread(bounds)
    (actual,) = qg.compile(model, num_threads=1).run(None, {})
    (expected,) = by_onnxruntime(model, {})
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if bounds.dtype == np.float32 else 0)


def test_a_range_without_steps_is_an_error() -> None:
    with pytest.raises(ModelError, match="delta is 0"):
        qg.import_model(spread(np.array([0, 5, 0], np.int64)))


@pytest.mark.parametrize("value", [None, np.array([7], np.int64), np.array([1.5], np.float32)])
def test_a_filled_shape_that_an_input_decides_is_compiled(value: np.ndarray | None) -> None:
    inputs = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    dtype = np.dtype(np.float32) if value is None else value.dtype
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(dtype), [None, None])
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], **inputs)
    graph = helper.make_graph([node], "g", [shape], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    for sizes in ([2, 3], [1, 4]):
        (actual,) = compiled.run(None, {"shape": np.array(sizes)})
        np.testing.assert_array_equal(actual, np.full(sizes, 0 if value is None else value[0]))
        assert actual.dtype == dtype


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [("InstanceNormalization", {}), ("GroupNormalization", {"num_groups": 2})],
)
def test_norms_scale_by_what_is_computed(op_type: str, inputs: dict[str, int]) -> None:
    scale, bias = floats(4, seed=1), floats(4, seed=2)
    model = single(op_type, floats(2, 4, 3, 5), scale, bias, opset=21, **inputs)
    assert_agrees(*model, tolerance=1e-5)


def test_known_scalars_pass_through_float_arithmetic() -> None:
    """Cast, Add, Cast, Less, all on constant scalars, as Paddle counts the steps of a loop."""
    constants = {"count": np.array(500), "one": np.array(1.0, np.float32), "zero": np.array(0)}
    nodes = [
        helper.make_node("Cast", ["count"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["real", "one"], ["next"]),
        helper.make_node("Cast", ["next"], ["steps"], to=TensorProto.INT64),
        helper.make_node("Less", ["zero", "steps"], ["begins"]),
        helper.make_node("Cast", ["begins"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    (actual,) = qg.compile(model, num_threads=1).run(None, {"x": np.array([2.0, 3.0], np.float32)})
    np.testing.assert_array_equal(actual, [2.0, 3.0])


def test_the_mean_over_no_rows_is_nan_without_a_warning() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["none"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("Add", ["x", "mean"], ["y"]),
    ]
    none = numpy_helper.from_array(np.zeros((0, 3), np.float32), "none")
    model = model_of(nodes, {"x": floats(2, 3)}, ["y"], [none])
    assert np.isnan(qg.interpret(qg.import_model(model), {"x": floats(2, 3)})[0]).all()
