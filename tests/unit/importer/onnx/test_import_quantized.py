"""Integer operators, integer inputs and outputs, and the round trip through an export."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantglow as qg
from quantglow.export.onnx.model import export_onnx
from quantglow.importer import onnx as importer
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Max, Min
from quantglow.ir.ops.arithmetic import is_integer
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import expensive, moderate
from tests.support.feeds import feeds_of
from tests.unit.export.onnx.export_cases import INT8
from tests.unit.export.onnx.export_kit import Kit
from tests.unit.quantization.qdq.qdq_models import INT8 as SIGNED
from tests.unit.quantization.qdq.qdq_models import UINT8, QdqModel, by_onnxruntime


def assert_integers_agree(m: QdqModel, *outputs: str, ties: float = 0.01) -> Graph:
    """Outputs are integers; compiled, at most a step from onnxruntime's, with the same type."""
    model, feeds = m.model(*outputs), m.feeds()
    graph = qg.import_model(model)
    graph.verify()
    compiled = qg.compile(model, num_threads=1).run(None, feeds)
    actual, expected = qg.interpret(graph, feeds), by_onnxruntime(model, feeds)
    for mine, theirs, same in zip(actual, expected, compiled, strict=True):
        assert np.array_equal(mine, same)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        steps = np.abs(mine.astype(int) - theirs.astype(int))
        assert steps.max() <= 1
        assert steps.mean() <= ties
    return graph


def operand(m: QdqModel, dtype: type, *shape: int, scale: float = 0.0297) -> tuple[str, str, str]:
    """Integers with scale and zero point."""
    parameters = m.parameters(scale, 120 if dtype is UINT8 else -5, dtype)
    return (m.op("QuantizeLinear", m.input(*shape), *parameters), *parameters)


def result(m: QdqModel, dtype: type) -> tuple[str, str]:
    return m.parameters(0.05, 130 if dtype is UINT8 else 3, dtype)


def weights(
    m: QdqModel, shape: tuple[int, ...], channels: int, dtype: type = SIGNED
) -> tuple[str, str, str]:
    parameters = m.parameters(
        m.random.uniform(0.002, 0.02, channels), np.full(channels, 128 * (dtype is UINT8)), dtype
    )
    return (m.tensor(m.weight_codes(shape, dtype)), *parameters)


@pytest.mark.parametrize("dtype", [UINT8, SIGNED])
def test_qlinear_conv(dtype: type) -> None:
    m = QdqModel()
    x, w = operand(m, dtype, 1, 6, 7, 5), weights(m, (4, 6, 3, 3), 4, SIGNED)
    bias = m.tensor(m.random.integers(-3000, 3000, 4).astype(np.int32))
    graph = assert_integers_agree(
        m, m.op("QLinearConv", *x, *w, *result(m, dtype), bias, pads=[1, 1, 1, 1])
    )
    assert not any(n.op == "Conv" and n.type.dtype.is_float for n in graph.nodes)


def test_qlinear_conv_on_channels_last_images() -> None:
    m = QdqModel()
    x, w = operand(m, UINT8, 1, 7, 5, 6), weights(m, (4, 6, 3, 3), 4)
    model = m.model(
        m.microsoft("QLinearConv", *x, *w, *result(m, UINT8), dtype=UINT8, channels_last=1)
    )
    (actual,) = qg.interpret(qg.import_model(model), m.feeds())
    assert actual.shape == (1, 5, 3, 4)


@pytest.mark.parametrize("dtype", [UINT8, SIGNED])
def test_qlinear_matmul(dtype: type) -> None:
    m = QdqModel()
    y = m.op("QLinearMatMul", *operand(m, dtype, 3, 20), *weights(m, (20, 7), 7), *result(m, dtype))
    assert_integers_agree(m, y)


def test_qlinear_matmul_of_two_activations() -> None:
    m = QdqModel()
    x, y = operand(m, UINT8, 2, 3, 20), operand(m, UINT8, 2, 20, 5)
    assert_integers_agree(m, m.op("QLinearMatMul", *x, *y, *result(m, UINT8)))


@pytest.mark.parametrize("flip", [0, 1])
def test_qgemm(flip: int) -> None:
    m = QdqModel()
    w = weights(m, (7, 20) if flip else (20, 7), 7)
    bias = m.tensor(m.random.integers(-3000, 3000, 7).astype(np.int32))
    x = operand(m, UINT8, 3, 20)
    y = m.microsoft("QGemm", *x, *w, bias, *result(m, UINT8), dtype=UINT8, transB=flip)
    assert_integers_agree(m, y)


@pytest.mark.parametrize("dtype", [UINT8, SIGNED])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_qlinear_arithmetic(op_type: str, dtype: type) -> None:
    m = QdqModel()
    x, y = operand(m, dtype, 2, 30), operand(m, dtype, 1, 30, scale=0.0171)
    assert_integers_agree(m, m.microsoft(op_type, *x, *y, *result(m, dtype), dtype=dtype))


@pytest.mark.parametrize("dtype", [UINT8, SIGNED])
@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.13}),
        ("QLinearGlobalAveragePool", {}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}),
    ],
)
def test_qlinear_functions(op_type: str, attributes: dict, dtype: type) -> None:
    m = QdqModel()
    x = operand(m, dtype, 1, 3, 6, 6)
    assert_integers_agree(m, m.microsoft(op_type, *x, *result(m, dtype), dtype=dtype, **attributes))


def test_qlinear_softmax() -> None:
    m = QdqModel()
    x, out = operand(m, UINT8, 5, 9), m.parameters(1 / 256, 0, UINT8)
    y = m.microsoft("QLinearSoftmax", *x, *out, dtype=UINT8, axis=-1, opset=13)
    assert_integers_agree(m, y, ties=0.1)


def test_qlinear_concat() -> None:
    m = QdqModel()
    x, y = operand(m, UINT8, 1, 3, 5), operand(m, UINT8, 1, 2, 5, scale=0.0171)
    assert_integers_agree(
        m, m.microsoft("QLinearConcat", *result(m, UINT8), *x, *y, dtype=UINT8, axis=1)
    )


@pytest.mark.parametrize("dtype", [UINT8, SIGNED])
def test_integers_move_between_their_operators(dtype: type) -> None:
    """MaxPool, Transpose, Concat and Reshape of integers, as onnxruntime's tools leave them."""
    m = QdqModel()
    x, *parameters = operand(m, dtype, 1, 3, 6, 6)
    pooled = m.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    turned = m.op("Transpose", pooled, perm=[0, 2, 3, 1])
    joined = m.op("Concat", turned, turned, axis=3)
    flat = m.op("Reshape", joined, m.tensor(np.array([1, -1], np.int64)))
    assert_integers_agree(m, m.op("DequantizeLinear", flat, *parameters), joined)


def test_integers_read_with_other_parameters_keep_their_codes() -> None:
    m = QdqModel()
    x, *_ = operand(m, UINT8, 4, 30)
    assert_integers_agree(m, m.op("DequantizeLinear", x, *m.parameters(0.5, 3, UINT8)))


def test_integers_of_a_rounding_take_part_in_integer_arithmetic() -> None:
    m = QdqModel()
    x, *_ = operand(m, UINT8, 4, 30)
    wide = m.op("Cast", x, to=TensorProto.INT32)
    assert_integers_agree(m, m.op("Mul", wide, wide))


def test_computed_int32_are_dequantized() -> None:
    m = QdqModel()
    x, *_ = operand(m, UINT8, 4, 6)
    wide = m.op("Cast", x, to=TensorProto.INT32)
    squares = m.op("Mul", wide, wide)
    scales = m.tensor(m.random.uniform(0.1, 0.2, 6).astype(np.float32))
    assert_integers_agree(m, m.op("DequantizeLinear", squares, scales, axis=1))


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8])
def test_models_may_take_and_give_integers(kind: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    m = QdqModel()
    m.inputs["x"] = (2, 30)
    parameters = m.parameters(0.1, 100, dtype)
    y = m.op("Sigmoid", m.op("DequantizeLinear", "x", *parameters))
    model = m.model(m.op("QuantizeLinear", y, *m.parameters(1 / 256, 0, dtype)))
    model.graph.input[0].type.tensor_type.elem_type = kind
    feeds = {"x": m.codes((2, 30), dtype)}
    (expected,) = by_onnxruntime(model, feeds)
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert actual.dtype == expected.dtype == dtype
    assert np.abs(actual.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("case", INT8)
@expensive
@given(seed=...)
def test_an_exported_int8_operator_is_imported_with_its_integers(case: str, seed: int) -> None:
    kit = Kit(abs(seed), int8=True)
    graph = kit.graph(INT8[case](kit))
    feeds = kit.feeds(graph)
    again = qg.import_model(export_onnx(graph))
    for value, expected in zip(qg.interpret(again, feeds), qg.interpret(graph, feeds), strict=True):
        assert np.array_equal(value, expected)


def has_one_number(node: Node) -> bool:
    return any(isinstance(o, Constant) and np.ptp(o.value) == 0 for o in node.operands)


@moderate
@given(mixed_graphs())
def test_an_exported_graph_is_imported_with_its_integers(graph: Graph) -> None:
    assume(all(node.type.size for node in graph.nodes))
    # With one number they are a Clip, whose table divides by steps: a tie may go the other way.
    assume(not any(isinstance(n, Max | Min) and has_one_number(n) for n in graph.nodes))
    again = qg.import_model(export_onnx(graph))
    again.verify()
    feeds = feeds_of(graph, spread=2.0)
    expected = qg.interpret(graph, feeds)
    read = {node.name for node in again.inputs}
    results = qg.interpret(again, {name: a for name, a in feeds.items() if name in read})
    for (_, node), mine, theirs in zip(graph.outputs, results, expected, strict=True):
        assert mine.dtype == theirs.dtype
        if is_integer(node.type):
            assert np.array_equal(mine, theirs)


def test_a_scale_computed_at_run_time_is_left_to_onnxruntime() -> None:
    m = QdqModel()
    x = m.input(2, 3)
    scale = m.op("ReduceMax", m.op("Abs", x), keepdims=0)
    point = m.tensor(np.array(3, np.uint8))
    y = m.op("DequantizeLinear", m.op("QuantizeLinear", x, scale, point), scale, point)
    model, feeds = m.model(y), m.feeds()
    (expected,) = by_onnxruntime(model, feeds)
    np.testing.assert_allclose(qg.interpret(qg.import_model(model), feeds)[0], expected)


def test_a_refusal_names_the_node_and_the_cause() -> None:
    m = QdqModel()
    scale = m.tensor(np.array(0.1, np.float32))
    point = m.tensor(np.array(0.0, np.float32), TensorProto.FLOAT8E4M3FN)
    y = m.op("QuantizeLinear", m.input(2, 3), scale, point)
    with pytest.raises(qg.UnsupportedOpError) as caught:
        importer.import_model(m.model(m.op("DequantizeLinear", y, scale, point)))
    assert f"node_{y}" in caught.value.problems[0]
    assert "float8e4m3fn" in caught.value.problems[0]


def test_scales_that_do_not_fit_their_axis_are_malformed() -> None:
    m = QdqModel()
    y = m.quantize(m.input(3, 8), [0.1] * 3, [1] * 3, UINT8, axis=1)
    with pytest.raises(qg.ModelError, match=f"node_{y}.*3 scales do not fit axis 1"):
        qg.import_model(m.model(y))


@pytest.mark.parametrize("point", [-5, 9])
def test_constants_beyond_32_bits_are_saturated(point: int) -> None:
    """The evaluator of ONNX gives infinities and large numbers the other sign."""
    constants = np.array([[-np.inf, np.inf, 3e9, -3e9, 1, 0]], np.float32)
    values = {"k": constants, "s": np.float32(0.02), "z": np.int8(point)}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["k", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            helper.make_node("Add", ["d", "x"], ["y"]),
        ],
        "saturated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6]),
            helper.make_tensor_value_info("q", TensorProto.INT8, [1, 6]),
        ],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.zeros((1, 6), np.float32)
    y, q = qg.compile(model, num_threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(q, [[-128, 127, 127, -128, 50 + point, point]])
    for one, other in zip((y, q), by_onnxruntime(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("element", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "INT4", "UINT4"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("has_points", [False, True])
def test_known_integers_have_the_real_numbers_of_onnx(
    element: str, axis: int | None, has_points: bool
) -> None:
    """A formula gives them where it is plain, else the evaluator."""
    rng, onnx_type = np.random.default_rng(0), getattr(TensorProto, element)
    dtype = helper.tensor_dtype_to_np_dtype(onnx_type)
    bits = int("".join(filter(str.isdigit, element)))
    low = 0 if element.startswith("U") else -(2 ** (bits - 1))
    codes = rng.integers(low, low + 2**bits, (3, 5)).astype(dtype)
    sizes = () if axis is None else (codes.shape[axis],)
    scales = rng.uniform(0.001, 2, sizes).astype(np.float32)
    points = rng.integers(low, low + 2**bits, sizes)
    points = np.asarray(points * (element != "INT32")).astype(dtype)
    operands = {"codes": codes, "scales": scales, **({"points": points} if has_points else {})}
    attributes = {} if axis is None else {"axis": axis}
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", list(operands), ["y"], **attributes)],
        "g",
        [],
        [end],
        [numpy_helper.from_array(array, name) for name, array in operands.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (expected,) = ReferenceEvaluator(model).run(None, {})
    ((_, actual),) = qg.import_model(model).outputs
    assert isinstance(actual, Constant)
    np.testing.assert_array_equal(actual.value, expected)
