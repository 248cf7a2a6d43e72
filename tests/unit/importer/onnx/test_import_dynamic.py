"""Models quantized at run time: DynamicQuantizeLinear, MatMulInteger, ConvInteger."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from tests.support.effort import moderate
from tests.unit.quantization.qdq.qdq_models import INT8, UINT8, QdqModel, by_onnxruntime


def assert_equal(m: QdqModel, *outputs: str, feeds: dict | None = None) -> qg.Graph:
    """Interpreted and compiled, onnxruntime's integers bit for bit, without the fallback."""
    model, feeds = m.model(*outputs), feeds or m.feeds()
    graph = qg.import_model(model)
    graph.verify()
    assert "External" not in {n.op for n in graph.nodes}
    compiled = qg.compile(model, num_threads=1).run(None, feeds)
    for mine, same, theirs in zip(
        qg.interpret(graph, feeds), compiled, by_onnxruntime(model, feeds), strict=True
    ):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.array_equal(mine, theirs)
        assert np.array_equal(same, mine)
    return graph


def dynamic(m: QdqModel, x: str) -> tuple[str, str, str]:
    """codes, scale, zero point"""
    m.op("DynamicQuantizeLinear", x)
    codes = m.nodes[-1].output[0]
    m.nodes[-1].output.extend([f"{codes}_scale", f"{codes}_point"])
    return codes, f"{codes}_scale", f"{codes}_point"


@pytest.mark.parametrize(
    "x",
    [
        np.linspace(-3, 7, 60),
        np.linspace(2, 9, 60),
        np.linspace(-9, -1, 60),
        np.zeros(60),
        np.full(60, 1e-30),
        np.arange(60) * 0.5,
    ],
    ids=["both", "positive", "negative", "zeros", "tiny", "ties"],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_dynamic_quantize_linear(x: np.ndarray, is_known: bool) -> None:
    m, x = QdqModel(), x.reshape(6, 10).astype(np.float32)
    inputs = m.tensor(x) if is_known else m.input(6, 10)
    assert_equal(m, *dynamic(m, inputs), feeds=None if is_known else {inputs: x})


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_matmul_integer(dtype: type, per_channel: bool) -> None:
    m = QdqModel()
    codes, _, point = dynamic(m, m.input(2, 3, 40))
    w, count = m.tensor(m.weight_codes((40, 9), dtype)), 9 if per_channel else 1
    points = m.tensor(m.codes((count,), dtype) if per_channel else m.codes((), dtype))
    assert_equal(m, m.op("MatMulInteger", codes, w, point, points))


def test_matmul_integer_sums_beyond_24_bits_are_exact() -> None:
    m = QdqModel()
    codes, _, point = dynamic(m, m.input(2, 3000))
    w = m.tensor(np.full((3000, 3), 63, np.int8))
    x = np.full((2, 3000), 1.0, np.float32)
    x[:, ::7], x[1, 0] = 0.99, -0.1
    assert_equal(m, m.op("MatMulInteger", codes, w, point), feeds={"v0": x})


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 2, 0, 1]])
def test_conv_integer(dtype: type, pads: list[int]) -> None:
    m = QdqModel()
    codes, _, point = dynamic(m, m.input(1, 6, 7, 5))
    w, points = m.tensor(m.weight_codes((4, 3, 3, 2), dtype)), m.tensor(m.codes((1,), dtype))
    attributes = {"pads": pads, "group": 2, "strides": [2, 1]}
    assert_equal(m, m.op("ConvInteger", codes, w, point, points, **attributes))


def test_integer_products_of_integers_that_the_caller_feeds() -> None:
    m = QdqModel()
    m.inputs["a"] = (5, 8)
    model = m.model(m.op("MatMulInteger", "a", m.tensor(m.weight_codes((8, 3)))))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    feeds = {"a": m.codes((5, 8), UINT8)}
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert np.array_equal(actual, by_onnxruntime(model, feeds)[0])


@moderate
@given(
    k=st.integers(1, 70),
    n=st.integers(1, 20),
    dtype=st.sampled_from([INT8, UINT8]),
    seed=st.integers(0, 2**16),
)
def test_drawn_products_are_exact(k: int, n: int, dtype: type, seed: int) -> None:
    m = QdqModel(seed=seed)
    codes, _, point = dynamic(m, m.input(3, k))
    points = m.tensor(m.codes((), dtype))
    y = m.op("MatMulInteger", codes, m.tensor(m.weight_codes((k, n), dtype)), point, points)
    assert_equal(m, y)


def test_a_dynamically_quantized_layer_runs_in_int8() -> None:
    """A Linear layer in the form of onnxruntime's quantize_dynamic."""
    m = QdqModel()
    codes, scale, point = dynamic(m, m.input(3, 40))
    sums = m.op("MatMulInteger", codes, m.tensor(m.weight_codes((40, 9))), point)
    scales = m.op("Mul", scale, m.tensor(m.random.uniform(0.01, 0.02, 9).astype(np.float32)))
    y = m.op("Mul", m.op("Cast", sums, to=TensorProto.FLOAT), scales)
    graph = assert_equal(m, y)
    (product,) = (n for n in graph.nodes if n.op == "Gemm")
    assert [o.type.dtype for o in product.operands] == ["i8", "i8"]


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("quantized_first", [False, True])
def test_products_that_onnxruntime_fused(quantized_first: bool, dtype: type) -> None:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat, with a bias."""
    m = QdqModel()
    x, w = m.input(3, 40), m.tensor(m.weight_codes((40, 9), dtype))
    scales = m.tensor(m.random.uniform(0.01, 0.02, 9).astype(np.float32))
    points = m.tensor(m.codes((9,), dtype))
    bias = m.tensor(m.random.standard_normal(9).astype(np.float32))
    if quantized_first:
        codes, scale, point = dynamic(m, x)
        operands = (codes, w, scale, scales, point, points, bias)
        y = m.microsoft("MatMulIntegerToFloat", *operands, dtype=np.float32)
    else:
        y = m.microsoft("DynamicQuantizeMatMul", x, w, scales, points, bias, dtype=np.float32)
    model, feeds = m.model(y), m.feeds()
    assert "External" not in {n.op for n in qg.import_model(model).nodes}
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    np.testing.assert_allclose(actual, by_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-4)


def test_weights_computed_at_run_time_are_left_to_the_fallback() -> None:
    m = QdqModel()
    x, _, point = dynamic(m, m.input(3, 8))
    y, _, other = dynamic(m, m.input(8, 3))
    model, feeds = m.model(m.op("MatMulInteger", x, y, point, other)), m.feeds()
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert np.array_equal(actual, by_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("columns", [15, 17, 40])
def test_products_of_other_depths_than_the_weights_are_refused(columns: int) -> None:
    """At the shape of a call, too, which a model of free dimensions had cut to the weights'."""
    weights = np.random.default_rng(0).integers(0, 255, (16, 4)).astype(np.uint8)
    tensors = {"w": weights, "scale": np.float32(0.007), "point": np.uint8(128)}
    node = helper.make_node("DynamicQuantizeMatMul", ["x", *tensors], ["y"], domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "K"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], initializers), opset_imports=opsets, ir_version=8
    )
    compiled = qg.compile(model, num_threads=1)
    assert compiled(np.ones((2, 16), np.float32)).shape == (2, 4)
    with pytest.raises(qg.InputError, match=f"x has {columns} columns, but the weights have 16"):
        compiled(np.ones((2, columns), np.float32))
