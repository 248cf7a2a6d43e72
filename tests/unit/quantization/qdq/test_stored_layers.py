"""Integer weights of layers that are no products in groups: convolutions, tables, MatMulNBits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import quantglow as qg
from quantglow.ir.ops import Conv, GroupedMatMul
from quantglow.quantization.plan.params import ROUNDED_TWICE
from quantglow.support.arrays import Array

CHANNELS = 16
node = helper.make_node
rng = np.random.default_rng(0)


def normal(*shape: int, scale: float = 0.3) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def assembled(
    nodes: list[onnx.NodeProto], arrays: dict[str, Array], batch: int | str, *tensors: Any
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(
        nodes,
        "stored",
        [helper.make_tensor_value_info("x", T.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", T.FLOAT, None)],
        [*initializers, *tensors],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def convolutions(
    axis: int = 0, batch: int | str = 2, normalized: bool = False, bias: float = 0.1
) -> tuple[onnx.ModelProto, Array]:
    """A convolution of 4-bit weights between two float ones, and its integers."""
    codes = rng.integers(-8, 8, (CHANNELS, CHANNELS, 3, 3))
    middle = [node("Conv", ["a", "w", "b"], ["c"], pads=[1] * 4)]
    if normalized:
        parameters = ["gamma", "beta", "mean", "var"]
        middle.append(node("BatchNormalization", ["c", *parameters], ["n"]))
    nodes = [
        node("Conv", ["x", "first"], ["conv"]),
        node("Relu", ["conv"], ["a"]),
        node("DequantizeLinear", ["codes", "scales"], ["w"], axis=axis),
        *middle,
        node("Relu", [middle[-1].output[0]], ["stored"]),
        node("Conv", ["stored", "last"], ["y"]),
    ]
    arrays = {
        "first": normal(CHANNELS, 3, 3, 3),
        "last": normal(4, CHANNELS, 1, 1),
        "b": normal(CHANNELS, scale=bias),
        "scales": rng.uniform(0.01, 0.05, CHANNELS).astype(np.float32),
        **{name: 1 + np.abs(normal(CHANNELS)) for name in ("gamma", "var")},
        **{name: normal(CHANNELS) for name in ("beta", "mean")},
    }
    stored = helper.make_tensor("codes", T.INT4, codes.shape, codes.reshape(-1).tolist())
    return assembled(nodes, arrays, batch, stored), codes


def samples(count: int = 8) -> list[dict[str, Array]]:
    return [{"x": normal(2, 3, 8, 8, scale=1.0)} for _ in range(count)]


def quantized(proto: onnx.ModelProto, **options: Any) -> Any:
    return qg.quantize_and_compile(proto, samples(), progress=False, num_threads=1, **options)


@pytest.mark.slow_variants
@pytest.mark.parametrize("normalized", [False, True])
def test_a_convolution_has_the_integers_of_the_model(normalized: bool) -> None:
    proto, codes = convolutions(normalized=normalized)
    compiled = quantized(proto)
    weights = [n.w.value for n in compiled.graph.nodes if isinstance(n, Conv)]
    assert any(w.shape == (3, 3, CHANNELS, CHANNELS) for w in weights)
    (ours,) = (w for w in weights if w.shape == (3, 3, CHANNELS, CHANNELS))
    np.testing.assert_array_equal(ours, codes.transpose(2, 3, 1, 0))
    assert compiled.report.summary().sqnr_db > 25


def test_scales_within_a_channel_leave_a_convolution_in_float() -> None:
    layers = {layer.name: layer for layer in quantized(convolutions(axis=1)[0]).report.layers}
    assert layers["stored"].precision == "float"
    assert layers["stored"].reason == ROUNDED_TWICE
    assert layers["y"].precision == "int8"


def test_a_bias_that_no_integer_of_the_scales_has_leaves_the_weights() -> None:
    """A step of the sum is so small that the bias needs more than 32 bits."""
    proto, codes = convolutions(bias=0.1)
    for tensor in proto.graph.initializer:
        if tensor.name == "scales":
            tensor.CopyFrom(numpy_helper.from_array(np.full(CHANNELS, 1e-12, np.float32), "scales"))
    compiled = quantized(proto, verify=False)
    floats = [n.w.value for n in compiled.graph.nodes if isinstance(n, Conv) and n.out is None]
    expected = (codes * np.float32(1e-12)).transpose(2, 3, 1, 0)
    assert any(w.shape == expected.shape and (w == expected).all() for w in floats)


def test_saved_models_compute_the_same_at_every_batch(tmp_path: Path) -> None:
    compiled = quantized(convolutions(batch="N")[0], verify=False)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm")
    for batch in (2, 5):
        x = normal(batch, 3, 8, 8, scale=1.0)
        (expected,) = compiled.run(None, {"x": x})
        np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], expected)


@pytest.mark.slow_variants
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_products_of_onnxruntimes_quantizer_keep_their_weights(bits: int, symmetric: bool) -> None:
    """Float activations of MatMulNBits become int8 around its products."""
    nodes = [
        node("Conv", ["x", "first"], ["conv"]),
        node("Relu", ["conv"], ["a"]),
        node("Flatten", ["a"], ["flat"]),
        node("MatMul", ["flat", "wide"], ["product"], "stored"),
        node("Relu", ["product"], ["active"]),
        node("Gemm", ["active", "last"], ["y"], "y"),
    ]
    arrays = {
        "first": normal(4, 3, 3, 3),
        "wide": normal(144, 64),
        "last": normal(64, 8),
    }
    quantizer = MatMulNBitsQuantizer(
        assembled(nodes, arrays, 2), bits=bits, block_size=32, is_symmetric=symmetric
    )
    quantizer.process()
    proto = quantizer.model.model
    (packed,) = (n for n in proto.graph.node if n.op_type == "MatMulNBits")
    (codes,) = (t for t in proto.graph.initializer if t.name == packed.input[1])
    compiled = quantized(proto)
    (product,) = (n for n in compiled.graph.nodes if isinstance(n, GroupedMatMul))
    np.testing.assert_array_equal(product.w.value, numpy_helper.to_array(codes))
    precisions = {layer.name: layer.precision for layer in compiled.report.layers}
    assert precisions["a"] == precisions["y"] == "int8"
    assert compiled.report.summary().sqnr_db > 25
