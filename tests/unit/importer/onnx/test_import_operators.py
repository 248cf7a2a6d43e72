"""Every operator, in the forms the opsets gave it, means what onnxruntime says it means."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from tests.generators.unary_functions import FUNCTIONS, Declared
from tests.unit.importer.onnx.onnx_models import (
    IMAGE,
    SCALAR,
    Const,
    assert_agrees,
    by_onnxruntime,
    floats,
    ints,
    single,
    weights,
)

POSITIVE = np.abs(floats(2, 3, 4)) + np.float32(0.1)
NEWEST = 23
"""The newest opset of which onnxruntime has all operators."""

OPSETS = (7, 9, 11, 13, 17, 21)
BN = [Const(np.abs(floats(4, seed=i)) + np.float32(0.2)) for i in range(4)]

UNARY = {
    "Identity": {},
    "Dropout": {},
    "Flatten": {},
    "GlobalAveragePool": {},
    "GlobalMaxPool": {},
    "GlobalLpPool": {"p": 3},
    "LRN": {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 1.5},
    "Transpose": {},
    "Softmax": {},
    "LogSoftmax": {},
    "ReduceMean": {},
    "ReduceSum": {"keepdims": 0},
    "ReduceMax": {},
    "ReduceMin": {},
}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op_type", UNARY)
def test_unary_operators_agree_with_onnxruntime(op_type: str, opset: int) -> None:
    assert_agrees(*single(op_type, IMAGE, opset=opset, **UNARY[op_type]), tolerance=1e-4)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("form", [f for f in FUNCTIONS if f.importable], ids=str)
def test_declared_functions_agree_with_onnxruntime(form: Declared, opset: int) -> None:
    x = POSITIVE if form.positive else IMAGE
    opset = max(opset, form.kind.since)
    if opset > NEWEST:
        assert_agrees_with_definition(form, x, opset)
    else:
        assert_agrees(*single(form.name, x, opset=opset, **form.attributes), tolerance=1e-4)


def assert_agrees_with_definition(form: Declared, x: np.ndarray, opset: int) -> None:
    """onnxruntime does not have the operator yet: the reference of onnx does."""
    model, feeds = single(form.name, x, opset=opset, **form.attributes)
    expected = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(
        interpret(import_model(model), feeds)[0], expected[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [
        ("Mish", 18, {}),
        ("Gelu", 20, {}),
        ("Gelu", 20, {"approximate": "tanh"}),
        ("Flatten", 13, {"axis": 0}),
        ("Flatten", 13, {"axis": -2}),
        ("Transpose", 13, {"perm": [1, 3, 0, 2]}),
        ("DepthToSpace", 11, {"blocksize": 2}),
        ("DepthToSpace", 13, {"blocksize": 2, "mode": "CRD"}),
        ("Softmax", 9, {"axis": 2}),
        ("Softmax", 11, {"axis": 0}),
        ("Softmax", 11, {"axis": -3}),
        ("Softmax", 13, {"axis": 1}),
        ("LogSoftmax", 13, {"axis": -2}),
        ("ReduceMean", 13, {"axes": [2, -1], "keepdims": 0}),
        ("Squeeze", 9, {}),
        ("Unsqueeze", 9, {"axes": [0, 3]}),
        ("Unsqueeze", 11, {"axes": [-1, 1]}),
        ("Cast", 13, {"to": TensorProto.FLOAT}),
        ("Sum", 13, {}),
        ("Max", 13, {}),
    ],
)
def test_attributes_agree_with_onnxruntime(op_type: str, opset: int, attributes: dict) -> None:
    assert_agrees(*single(op_type, IMAGE, opset=opset, **attributes))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (4, 1, 1), (6,), (1,)])
def test_binary_operators_broadcast_as_in_onnxruntime(op_type: str, shape: tuple) -> None:
    x = np.abs(IMAGE) if op_type == "Pow" else IMAGE
    assert_agrees(*single(op_type, x, weights(*shape)))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])
def test_two_computed_operands_agree_with_onnxruntime(op_type: str) -> None:
    assert_agrees(*single(op_type, floats(2, 1, 4), floats(3, 1, seed=5)))


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_variadic_operators_agree_with_onnxruntime(op_type: str) -> None:
    assert_agrees(*single(op_type, IMAGE, floats(4, 1, 1, seed=2), weights(6), floats(1, seed=3)))


def test_a_constant_may_be_the_left_operand() -> None:
    assert_agrees(*single("Sub", SCALAR, IMAGE))


def test_pow_takes_integer_exponents() -> None:
    assert_agrees(*single("Pow", IMAGE, ints(2)))


@pytest.mark.parametrize(
    ("opset", "operands", "attributes"),
    [
        (7, (), {"min": -0.2, "max": 0.5}),
        (10, (), {"max": 0.5}),
        (11, (SCALAR,), {}),
        (13, (None, SCALAR), {}),
        (13, (Const(np.array(-0.5, np.float32)), SCALAR), {}),
    ],
)
def test_clip_takes_attributes_and_operands(opset: int, operands: tuple, attributes: dict) -> None:
    assert_agrees(*single("Clip", IMAGE, *operands, opset=opset, **attributes))


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 5), (2, 4, 3, 5), (1, 4, 2, 3, 2)])
def test_batch_normalization_takes_any_rank(opset: int, shape: tuple) -> None:
    assert_agrees(*single("BatchNormalization", floats(*shape), *BN, opset=opset, epsilon=1e-3))


@pytest.mark.parametrize("opset", [7, 10, 13, 18, 21])
@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axes", [(1,), (-1, 2), (0, 1, 2, 3)])
def test_reductions_take_axes_of_both_forms(op_type: str, opset: int, axes: tuple) -> None:
    as_operand = opset >= (13 if op_type == "ReduceSum" else 18)
    operands = (ints(*axes),) if as_operand else ()
    attributes = {} if as_operand else {"axes": axes}
    assert_agrees(*single(op_type, IMAGE, *operands, opset=opset, keepdims=0, **attributes))


@pytest.mark.parametrize("noop", [0, 1])
def test_reduction_over_no_axes_is_all_or_none(noop: int) -> None:
    assert_agrees(*single("ReduceSum", IMAGE, ints(), noop_with_empty_axes=noop), tolerance=1e-4)


@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ((weights(6, 3),), {}),
        ((weights(6, 3), weights(3)), {}),
        ((weights(6, 3), weights(1)), {"beta": 0.5}),
        ((weights(6, 3), weights(1, 3)), {"alpha": 0.3, "beta": 2.0}),
        ((weights(6, 3), weights(5, 1)), {}),
        ((weights(6, 3), weights(5, 3)), {"beta": 0.5}),
        ((weights(6, 3), weights(3)), {"beta": 0.0}),
        ((weights(3, 6), weights(3)), {"transB": 1}),
        ((weights(5, 3), weights(3)), {"transA": 1}),
        ((floats(6, 3, seed=3), weights(3)), {"alpha": 0.5}),
        ((floats(3, 6, seed=3), floats(3)), {"transB": 1, "beta": 0.5}),
        ((weights(6, 3), floats(3)), {}),
    ],
)
def test_gemm_agrees_with_onnxruntime(operands: tuple, attributes: dict) -> None:
    assert_agrees(*single("Gemm", floats(5, 6), *operands, opset=11, **attributes))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((1, 2, 3, 4), (3, 1, 4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4,)),
        ((4,), (4,)),
        ((4,), (2, 4, 5)),
    ],
)
def test_matmul_takes_any_ranks(left: tuple, right: tuple, constant: bool) -> None:
    y = floats(*right, seed=1)
    assert_agrees(*single("MatMul", floats(*left), Const(y) if constant else y))


def test_matmul_takes_a_constant_left_side() -> None:
    assert_agrees(*single("MatMul", weights(3, 4), floats(2, 4, 5)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_other_float_types_become_float32(dtype: type) -> None:
    x = floats(2, 3)
    w = floats(3, 4).astype(dtype)
    single_model = single("MatMul", x, Const(w.astype(np.float32)))
    nodes = [
        helper.make_node("Cast", ["x1"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x0", "w"], ["y"]),
    ]
    del single_model[0].graph.node[:]
    single_model[0].graph.node.extend(nodes)
    single_model[0].graph.initializer[0].CopyFrom(_tensor(w, "x1"))
    assert_agrees(*single_model)


def _tensor(array: np.ndarray, name: str) -> TensorProto:
    return helper.make_tensor(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(), raw=True
    )


@pytest.mark.parametrize("axis", [-1, 2, 1, -4])
@pytest.mark.parametrize("operands", [1, 2])
def test_layer_normalization_agrees_with_onnxruntime(axis: int, operands: int) -> None:
    parameters = [weights(*IMAGE.shape[axis:])] * operands
    assert_agrees(*single("LayerNormalization", IMAGE, *parameters, axis=axis, epsilon=1e-3))


@pytest.mark.parametrize("axes", [None, [0, 2, 3], [-1], [1, 2]])
def test_mean_variance_normalization(axes: list[int] | None) -> None:
    inputs = {} if axes is None else {"axes": axes}
    assert_agrees(*single("MeanVarianceNormalization", IMAGE, opset=13, **inputs))


def test_a_small_deviation_beside_a_large_mean_is_exact() -> None:
    """A difference of the squares' means would lose all digits."""
    model, feeds = single("MeanVarianceNormalization", 1000 + IMAGE / 10, opset=13)
    (actual,) = interpret(import_model(model), feeds)
    x = feeds["x0"].astype(np.float64)
    centered = x - x.mean((0, 2, 3), keepdims=True)
    deviation = np.sqrt((centered**2).mean((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(actual, centered / deviation, atol=2e-3)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 3), (3, 4, 2, 2, 2)])
def test_instance_normalization_agrees_with_onnxruntime(shape: tuple[int, ...]) -> None:
    parameters = weights(4), Const(floats(4, seed=2))
    assert_agrees(*single("InstanceNormalization", floats(*shape), *parameters, epsilon=1e-3))


def test_group_normalization_agrees_with_onnxruntime() -> None:
    operands = weights(4), Const(floats(4, seed=2))
    assert_agrees(*single("GroupNormalization", IMAGE, *operands, opset=21, num_groups=2))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_extremes_of_integers_agree_with_numpy(op_type: str, dtype: type) -> None:
    x = np.random.default_rng(1).integers(0, 100, (2, 5, 3)).astype(dtype)
    model, feeds = single(op_type, x, Const(np.array([1], np.int64)), opset=20)
    (actual,) = interpret(import_model(model), feeds)
    expected = x.max(axis=1, keepdims=True) if op_type == "ReduceMax" else x.min(1, keepdims=True)
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd", "ReduceMean", "ReduceSumSquare"])
def test_sums_of_integers_agree_with_onnxruntime(op_type: str) -> None:
    x = np.random.default_rng(2).integers(1, 3, (3, 7, 2)).astype(np.int32)
    axes = {"axes": [0, 1]} if op_type != "ReduceSum" else {}
    operands = (x,) if axes else (x, Const(np.array([0, 1], np.int64)))
    model, feeds = single(op_type, *operands, opset=13, keepdims=0, **axes)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    (actual,), (expected,) = interpret(import_model(model), feeds), by_onnxruntime(model, feeds)
    np.testing.assert_array_equal(actual, expected, strict=True)
