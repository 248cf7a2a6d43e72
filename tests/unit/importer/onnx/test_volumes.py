"""Convolutions and pools over volumes are int8 as those over images, and of free size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.ir.ops import Conv
from quantglow.transforms.float import optimize
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats


def network(*sizes: int | str) -> onnx.ModelProto:
    """Two convolutions, one of which has groups, and a pool, on ``x`` [1, 4, sizes]."""
    shapes = {"w": (8, 4, 3, 3, 3), "b": (8,), "v": (8, 4, 2, 1, 3)}
    constants = [numpy_helper.from_array(0.3 * floats(*s), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["first"], pads=[1] * 6, strides=[1, 2, 1]),
        helper.make_node("Relu", ["first"], ["active"]),
        helper.make_node("MaxPool", ["active"], ["pooled"], kernel_shape=[2, 2, 3]),
        helper.make_node("Conv", ["pooled", "v"], ["y"], group=2, dilations=[2, 1, 1]),
    ]
    make = helper.make_tensor_value_info
    x = make("x", TensorProto.FLOAT, [1, 4, *sizes])
    graph = helper.make_graph(nodes, "g", [x], [make("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(*sizes: int) -> dict[str, np.ndarray]:
    return {"x": floats(1, 4, *sizes)}


def test_int8_products_are_rounded_once() -> None:
    graph = optimize(import_model(network(6, 9, 8)))
    profile = qg.profile(graph, [feeds(6, 9, 8)], progress=False)
    int8 = qg.quantize(graph, profile, qg.QuantizationConfig(quantize_output=True))
    layers = [node for node in int8.nodes if isinstance(node, Conv)]
    assert len(layers) == 2 and all(layer.x.type.quant and layer.out for layer in layers)
    for value, expected in zip(
        qg.compile(int8).run(None, feeds(6, 9, 8)),
        qg.interpret(int8, feeds(6, 9, 8)),
        strict=True,
    ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("quantized", [False, True])
def test_one_model_serves_all_sizes(quantized: bool) -> None:
    model, options = network("D", "H", "W"), dict[str, Any](verify=False, progress=False)
    samples = [feeds(6, 9, 8), feeds(7, 10, 12)]
    compiled = (
        qg.quantize_and_compile(model, samples, **options) if quantized else qg.compile(model)
    )
    for sizes in ((6, 9, 8), (7, 11, 12), (9, 13, 10), (6, 9, 31)):
        (actual,), (expected,) = (
            compiled.run(None, feeds(*sizes)),
            by_onnxruntime(model, feeds(*sizes)),
        )
        tolerance = (0.06 if quantized else 1e-5) * np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, atol=tolerance)
