"""Models that come quantized compute what onnxruntime computes, up to a step on ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import quantglow as qg
from quantglow.importer import onnx as importer
from quantglow.ir.ops import Conv, Gemm, MatMul
from tests.unit.quantization.qdq.qdq_models import (
    INT8,
    UINT8,
    QdqModel,
    by_onnxruntime,
    steps_apart,
)

STEP = 0.05
TIES = 2e-3
"""Share of integers that may lie on a tie."""

Case = Callable[[QdqModel, type], str]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def activation(m: QdqModel, dtype: type, *shape: int, shift: int = 7, scale: float = 0.0297) -> str:
    return m.rounded(m.input(*shape), scale, shift + (100 if dtype is UINT8 else 0), dtype)


def result(m: QdqModel, x: str, dtype: type) -> str:
    return m.rounded(x, STEP, 120 if dtype is UINT8 else -3, dtype)


@case
def conv(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 6, 7, 5)
    return m.op("Conv", x, m.weights((8, 6, 3, 3), 0), pads=[1, 1, 1, 1], strides=[2, 1])


@case
def conv_bias_relu(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 6, 7, 5)
    w = m.weights((8, 6, 1, 1), 0)
    bias = m.tensor(m.random.standard_normal(8).astype(np.float32))
    return m.op("Relu", m.op("Conv", x, w, bias))


@case
def conv_depthwise(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 8, 6, 6)
    return m.op("Conv", x, m.weights((8, 1, 3, 3), 0), group=8, pads=[1, 1, 1, 1])


@case
def conv_residual(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 6, 5, 5)
    product = m.op("Conv", x, m.weights((6, 6, 1, 1), 0))
    return m.op("Relu", m.op("Add", product, activation(m, dtype, 1, 6, 5, 5, shift=-9)))


@case
def conv_transpose(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 4, 5, 5)
    return m.op("ConvTranspose", x, m.weights((4, 3, 2, 2), 1), strides=[2, 2])


@case
def gemm(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 3, 20)
    bias = m.tensor(m.random.standard_normal(7).astype(np.float32))
    return m.op("Gemm", x, m.weights((7, 20), 0), bias, transB=1)


@case
def matmul_with_weights(m: QdqModel, dtype: type) -> str:
    return m.op("MatMul", activation(m, dtype, 2, 3, 20), m.weights((20, 9), 1))


@case
def matmul_of_transposed_weights(m: QdqModel, dtype: type) -> str:
    w = m.op("Transpose", m.weights((9, 20), 0), perm=[1, 0])
    return m.op("MatMul", activation(m, dtype, 3, 20), w)


@case
def matmul_of_activations(m: QdqModel, dtype: type) -> str:
    y = activation(m, dtype, 2, 8, 4, shift=-11)
    return m.op("MatMul", activation(m, dtype, 2, 5, 8), y)


@case
def add(m: QdqModel, dtype: type) -> str:
    return m.op("Add", activation(m, dtype, 2, 9), activation(m, dtype, 2, 1, scale=0.02))


@case
def multiplied(m: QdqModel, dtype: type) -> str:
    return m.op("Mul", activation(m, dtype, 2, 9), activation(m, dtype, 2, 9, scale=0.02))


@case
def added_constant(m: QdqModel, dtype: type) -> str:
    codes = m.tensor(m.codes((4, 1, 1), dtype))
    x = activation(m, dtype, 1, 4, 3, 3)
    return m.op("Add", x, m.dequantize(codes, 0.01, 0, dtype))


@case
def sigmoid(m: QdqModel, dtype: type) -> str:
    return m.op("Sigmoid", activation(m, dtype, 3, 50))


@case
def hard_swish_in_parts(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 3, 50)
    three = m.dequantize(m.tensor(np.array(3, dtype)), 1.0, 0, dtype)
    bounds = (m.tensor(np.array(v, np.float32)) for v in (0, 6))
    gate = m.op("Clip", m.op("Add", x, three), *bounds)
    sixth = m.tensor(np.array(1 / 6, np.float32))
    return m.op("Mul", m.op("Mul", x, gate), sixth)


@case
def leaky_relu(m: QdqModel, dtype: type) -> str:
    return m.op("LeakyRelu", activation(m, dtype, 3, 50), alpha=0.1)


@case
def clip(m: QdqModel, dtype: type) -> str:
    bounds = (m.tensor(np.array(v, np.float32)) for v in (-0.5, 1.7))
    return m.op("Clip", activation(m, dtype, 3, 50), *bounds)


@case
def average_pool(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 3, 6, 6)
    return m.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)


@case
def global_average_pool(m: QdqModel, dtype: type) -> str:
    return m.op("GlobalAveragePool", activation(m, dtype, 2, 3, 6, 7))


@case
def max_pool(m: QdqModel, dtype: type) -> str:
    x = activation(m, dtype, 1, 3, 6, 6)
    return m.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])


@case
def concat(m: QdqModel, dtype: type) -> str:
    parts = (activation(m, dtype, 1, c, 3, 3, scale=0.01 * c) for c in (2, 4))
    return m.op("Concat", *parts, axis=1)


@case
def softmax(m: QdqModel, dtype: type) -> str:
    return m.op("Softmax", activation(m, dtype, 4, 9), axis=-1)


@case
def rescale(m: QdqModel, dtype: type) -> str:
    return m.op("Transpose", activation(m, dtype, 4, 9), perm=[1, 0])


@case
def padded(m: QdqModel, dtype: type) -> str:
    pads = m.tensor(np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64))
    return m.op("Pad", activation(m, dtype, 1, 2, 3, 3), pads)


@case
def layer_normalization(m: QdqModel, dtype: type) -> str:
    gamma = m.tensor(m.random.uniform(0.5, 1, 16).astype(np.float32))
    return m.op("LayerNormalization", activation(m, dtype, 4, 16), gamma, axis=-1)


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("name", sorted(CASES))
def test_operators_between_roundings_give_onnxruntimes_integers(name: str, dtype: type) -> None:
    m = QdqModel()
    model = m.model(result(m, CASES[name](m, dtype), dtype))
    feeds = m.feeds()
    (expected,) = by_onnxruntime(model, feeds)
    for graph in (importer.import_model(model), qg.import_model(model)):
        graph.verify()
        (actual,) = qg.interpret(graph, feeds)
        steps = steps_apart(actual, expected, STEP)
        assert steps.max() <= 1
        assert steps.mean() <= TIES
    (compiled,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert np.array_equal(compiled, actual)


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_float_operator_is_left_between_roundings(name: str) -> None:
    m = QdqModel()
    graph = qg.import_model(m.model(result(m, CASES[name](m, UINT8), UINT8)))
    floats = {n.op for n in graph.compute_nodes() if n.type.dtype.is_float}
    assert floats <= {"Dequantize", "Transpose", "Reshape"}


@pytest.mark.parametrize(
    ("name", "op"), [("conv", Conv), ("gemm", Gemm), ("matmul_of_activations", MatMul)]
)
def test_products_that_nobody_rounds_give_float_from_exact_sums(name: str, op: type) -> None:
    m = QdqModel()
    model, feeds = m.model(CASES[name](m, UINT8)), m.feeds()
    graph = qg.import_model(model)
    (product,) = (n for n in graph.nodes if isinstance(n, op))
    assert product.operands[0].type.quant is not None
    (expected,) = by_onnxruntime(model, feeds)
    np.testing.assert_allclose(qg.interpret(graph, feeds)[0], expected, rtol=1e-4, atol=1e-4)
