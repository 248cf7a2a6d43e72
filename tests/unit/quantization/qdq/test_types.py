"""Integer types of activations, weights, biases: int8 operators where that is exact, else float."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.ir.ops import Conv, Gemm
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType
from tests.unit.quantization.qdq.qdq_models import (
    INT8,
    NARROW,
    UINT8,
    QdqModel,
    by_onnxruntime,
    steps_apart,
)

STEP = 0.05


def product_of(graph: qg.Graph) -> Contraction:
    (actual,) = (n for n in graph.nodes if isinstance(n, Contraction))
    return actual


def conv_model(m: QdqModel, w: str, *bias: str, dtype: type = UINT8, step: float = STEP) -> str:
    zero_point = 128 if dtype is UINT8 else 0
    x = m.rounded(m.input(1, 6, 5, 5), 0.03 if dtype is not np.int16 else 1e-4, zero_point, dtype)
    y = m.op("Conv", x, w, *bias, pads=[1, 1, 1, 1])
    return m.rounded(y, step, zero_point, dtype)


def assert_onnxruntimes_integers(model: onnx.ModelProto, m: QdqModel, step: float = STEP) -> None:
    feeds = m.feeds()
    (expected,) = by_onnxruntime(model, feeds)
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    steps = steps_apart(actual, expected, step)
    assert steps.max() <= 1
    assert steps.mean() <= 0.01


def weights(m: QdqModel, low: int, high: int, zero_points: object, dtype: type) -> str:
    codes = m.random.integers(low, high, (4, 6, 3, 3), endpoint=True).astype(dtype)
    scales = m.random.uniform(0.002, 0.02, 4)
    points = np.broadcast_to(np.asarray(zero_points), 4)
    return m.dequantize(m.tensor(codes), scales, points, dtype, axis=0)


@pytest.mark.parametrize(
    ("low", "high", "zero_points", "dtype"),
    [
        (-128, 127, 0, INT8),
        (-127, 100, 1, INT8),
        (-100, 122, (-1, 0, 27, 5), INT8),
        (0, 255, 128, UINT8),
        (3, 250, (130, 128, 123, 125), UINT8),
    ],
)
def test_weights_whose_differences_from_the_zero_point_are_int8_stay_integers(
    low: int, high: int, zero_points: object, dtype: type
) -> None:
    m = QdqModel()
    model = m.model(conv_model(m, weights(m, low, high, zero_points, dtype)))
    product = product_of(qg.import_model(model))
    assert product.w.type.dtype is DType.I8
    assert product.out is not None
    assert_onnxruntimes_integers(model, m)


def assert_all_products_are_of_integers(model: onnx.ModelProto) -> None:
    products = [n for n in qg.import_model(model).nodes if isinstance(n, Contraction)]
    assert products
    assert all(n.x.type.dtype is n.w.type.dtype is DType.I8 for n in products)


FAR = [90, 0, 255, (0, 128, 200, 255), (128, 128, 90, 128)]


@pytest.mark.parametrize("zero_points", FAR)
@pytest.mark.parametrize("is_biased", [True, False])
def test_weights_far_from_their_zero_point_are_multiplied_as_integers(
    zero_points: object, is_biased: bool
) -> None:
    m = QdqModel()
    codes = m.tensor(m.codes((4, 6, 3, 3), UINT8))
    points = np.broadcast_to(np.asarray(zero_points), 4)
    w = m.dequantize(codes, m.random.uniform(0.002, 0.02, 4), points, UINT8, axis=0)
    bias = [m.tensor(m.random.standard_normal(4).astype(np.float32))] if is_biased else []
    x = m.rounded(m.input(1, 6, 5, 5), 0.03, 100)
    y = m.op("Relu", m.op("Conv", x, w, *bias, pads=[1, 1, 0, 1]))
    model = m.model(m.rounded(y, 0.1, 20))
    assert_all_products_are_of_integers(model)
    assert_onnxruntimes_integers(model, m, 0.1)


def test_groups_of_weights_far_from_their_zero_point_are_multiplied_in_float() -> None:
    m = QdqModel()
    w = m.dequantize(m.tensor(m.codes((6, 1, 3, 3), UINT8)), 0.01, 90)
    x = m.rounded(m.input(1, 6, 5, 5), 0.03, 100)
    model = m.model(m.rounded(m.op("Conv", x, w, group=6), STEP, 128))
    assert product_of(qg.import_model(model)).w.type.dtype is DType.F32
    assert_onnxruntimes_integers(model, m)


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "ConvTranspose"])
def test_every_product_takes_weights_far_from_their_zero_point(kind: str) -> None:
    m = QdqModel()
    shape = (6, 4, 3, 3) if kind == "ConvTranspose" else (6, 4)
    w = m.dequantize(m.tensor(m.codes(shape, UINT8)), 0.01, 31)
    x = m.rounded(m.input(*((1, 6, 5, 5) if kind == "ConvTranspose" else (3, 6))), 0.03, 100)
    model = m.model(m.rounded(m.op(kind, x, w), 0.05, 128))
    assert_all_products_are_of_integers(model)
    assert_onnxruntimes_integers(model, m)


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_products_of_far_weights_are_those_of_the_interpreter(backend: str) -> None:
    m = QdqModel()
    model = m.model(conv_model(m, weights(m, 0, 255, 200, UINT8)))
    graph, feeds = qg.import_model(model), m.feeds()
    (actual,) = qg.compile(graph, num_threads=1, backend=backend).run(None, feeds)
    np.testing.assert_array_equal(actual, qg.interpret(graph, feeds)[0])


def test_the_report_says_which_products_compute_in_float_and_why() -> None:
    m = QdqModel()
    y = m.op("MatMul", m.rounded(m.input(3, 8), 0.03, 128), blocked_weights(m))
    (note,) = qg.compile(m.model(y), num_threads=1).report.notes
    assert note.startswith("1 product(s)") and "weights not being int8" in note
    m = QdqModel()
    y = conv_model(m, weights(m, 0, 255, 90, UINT8))
    assert qg.compile(m.model(y), num_threads=1).report.notes == ()


@pytest.mark.parametrize("kind", NARROW)
def test_four_bit_weights_become_int8(kind: int) -> None:
    m = QdqModel()
    low, high = NARROW[kind]
    codes = m.random.integers(low, high, (4, 6, 3, 3), endpoint=True)
    scales = m.tensor(m.random.uniform(0.02, 0.1, 4).astype(np.float32))
    zero_points = m.tensor(np.full(4, 0 if low else 7), kind)
    w = m.op("DequantizeLinear", m.tensor(codes, kind), scales, zero_points, axis=0)
    model = m.model(conv_model(m, w))
    assert product_of(qg.import_model(model)).w.type.dtype is DType.I8
    assert_onnxruntimes_integers(model, m)


def blocked_weights(m: QdqModel) -> str:
    codes = m.tensor(m.codes((8, 5)))
    scales = m.tensor(m.random.uniform(0.002, 0.02, (2, 5)).astype(np.float32))
    return m.op("DequantizeLinear", codes, scales, axis=0, block_size=4)


def test_blocked_weights_are_multiplied_in_float() -> None:
    m = QdqModel()
    w = blocked_weights(m)
    x = m.rounded(m.input(3, 8), 0.03, 128)
    model = m.model(m.rounded(m.op("MatMul", x, w), STEP, 128))
    assert product_of(qg.import_model(model)).w.type.dtype is DType.F32
    assert_onnxruntimes_integers(model, m)


def int32_bias(m: QdqModel, scales: np.ndarray) -> str:
    codes = m.tensor(m.random.integers(-3000, 3000, 4).astype(np.int32))
    return m.op("DequantizeLinear", codes, m.tensor(scales.astype(np.float32)), axis=0)


def symmetric_weights(m: QdqModel) -> tuple[str, np.ndarray]:
    scales = m.random.uniform(0.002, 0.02, 4).astype(np.float32)
    return m.dequantize(m.tensor(m.codes((4, 6, 3, 3))), scales, [0] * 4, INT8, axis=0), scales


def test_a_bias_in_steps_of_the_sum_keeps_its_integers() -> None:
    m = QdqModel()
    w, scales = symmetric_weights(m)
    bias = int32_bias(m, scales * np.float32(0.03))
    model = m.model(conv_model(m, w, bias))
    (codes,) = (a for a in map(onnx.numpy_helper.to_array, m.tensors) if a.dtype == np.int32)
    product = product_of(qg.import_model(model))
    assert product.b is not None
    assert np.array_equal(product.b.reference(), codes)
    assert_onnxruntimes_integers(model, m)


def test_a_bias_of_another_scale_is_rounded_to_fine_steps_of_the_sum() -> None:
    m = QdqModel()
    w, scales = symmetric_weights(m)
    model = m.model(conv_model(m, w, int32_bias(m, scales * np.float32(0.011))))
    graph = qg.import_model(model)
    product = product_of(graph)
    assert product.b is not None and product.b.type.dtype is DType.I32
    assert_onnxruntimes_integers(model, m)


def test_a_bias_is_added_in_float_where_steps_of_the_sum_are_coarse() -> None:
    m = QdqModel()
    w, _ = symmetric_weights(m)
    bias = m.tensor(m.random.standard_normal(4).astype(np.float32))
    model = m.model(conv_model(m, w, bias, step=0.002))
    graph = qg.import_model(model)
    assert product_of(graph).b is None
    assert "Add" in {n.op for n in graph.nodes}
    assert_onnxruntimes_integers(model, m, 0.002)


def test_a_bias_that_fills_32_bits_cannot_make_the_sum_overflow() -> None:
    m = QdqModel()
    w, scales = symmetric_weights(m)
    codes = m.tensor(np.array([2**31 - 1, -(2**31) + 1, 5, 2**31 - 1], np.int32))
    tiny = (scales * np.float32(0.03)).astype(np.float32)
    bias = m.op("DequantizeLinear", codes, m.tensor(tiny), axis=0)
    model = m.model(conv_model(m, w, bias, step=2e4))
    assert product_of(qg.import_model(model)).out is not None
    assert_onnxruntimes_integers(model, m, 2e4)


def test_symmetric_int16_activations_run_in_int16() -> None:
    m = QdqModel()
    w, _ = symmetric_weights(m)
    model = m.model(conv_model(m, w, dtype=np.int16, step=1e-3))
    product = product_of(qg.import_model(model))
    assert product.x.type.dtype is product.type.dtype is DType.I16
    assert_onnxruntimes_integers(model, m, 1e-3)


def test_asymmetric_uint16_activations_are_rounded_but_computed_in_float() -> None:
    m = QdqModel()
    w, _ = symmetric_weights(m)
    x = m.rounded(m.input(1, 6, 5, 5), 1e-4, 30000, np.uint16)
    model = m.model(m.rounded(m.op("Conv", x, w), 1e-3, 40000, np.uint16))
    graph = qg.import_model(model)
    assert isinstance(product_of(graph), Conv) and product_of(graph).x.type.dtype is DType.F32
    assert [n.op for n in graph.nodes].count("Quantize") == 2
    assert_onnxruntimes_integers(model, m, 1e-3)


def test_activations_quantized_per_axis_keep_their_roundings() -> None:
    m = QdqModel()
    scales, points = m.random.uniform(0.01, 0.05, 6), m.random.integers(0, 255, 6)
    x = m.rounded(m.input(1, 6, 5, 5), scales, points, UINT8, axis=1)
    w, _ = symmetric_weights(m)
    model = m.model(m.rounded(m.op("Conv", x, w), STEP, 100))
    assert_onnxruntimes_integers(model, m)


def test_weights_rounded_in_the_model_are_its_integers() -> None:
    """Weights as TensorRT's tools write them: float, behind QuantizeLinear and DequantizeLinear."""
    m = QdqModel()
    w = m.tensor(m.random.standard_normal((7, 20)).astype(np.float32))
    stored = m.rounded(w, m.random.uniform(0.01, 0.03, 7), np.zeros(7), INT8, axis=0)
    x = m.rounded(m.input(3, 20), 0.03, 0, INT8)
    model = m.model(m.rounded(m.op("Gemm", x, stored, transB=1), STEP, 0, INT8))
    product = product_of(qg.import_model(model))
    assert isinstance(product, Gemm) and product.w.type.dtype is DType.I8
    assert_onnxruntimes_integers(model, m)


def test_quantized_models_serve_every_shape_that_they_leave_free() -> None:
    m = QdqModel()
    w, _ = symmetric_weights(m)
    model = m.model(conv_model(m, w))
    for axis, name in ((0, "n"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:], model.graph.output[0].type.tensor_type.shape.dim[:]
    compiled = qg.compile(model, num_threads=1)
    for shape in ((1, 6, 5, 5), (3, 6, 5, 9)):
        feeds = {model.graph.input[0].name: m.random.standard_normal(shape).astype(np.float32)}
        (expected,) = by_onnxruntime(model, feeds)
        (actual,) = compiled.run(None, feeds)
        assert steps_apart(actual, expected, STEP).max() <= 1


def test_two_roundings_in_a_row_are_two() -> None:
    m = QdqModel()
    x = m.rounded(m.input(4, 50), 0.1, 250)
    model = m.model(m.rounded(x, 0.1, 3))
    graph = qg.import_model(model)
    assert [n.op for n in graph.compute_nodes()] == ["Quantize", "Rescale", "Dequantize"]
    assert_onnxruntimes_integers(model, m, 0.1)
