"""Operators that onnxruntime fuses compute what it computes, and become int8 as their parts do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.support.errors import UnsupportedOpError
from tests.unit.importer.onnx.onnx_models import assert_agrees, floats


def fused(
    op_type: str, inputs: dict[str, np.ndarray], known: dict[str, np.ndarray], **attributes: Any
) -> onnx.ModelProto:
    """A model of one operator of com.microsoft."""
    node = helper.make_node(
        op_type, [*inputs, *known], ["y"], "n", domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("rank", "flags"),  # Matrices have no batch to transpose.
    [(2, flags) for flags in range(4)] + [(r, flags) for r in (3, 4) for flags in range(16)],
)
def test_products(rank: int, flags: int) -> None:
    names = ("transA", "transB", "transBatchA", "transBatchB")
    inputs = {name: flags >> bit & 1 for bit, name in enumerate(names)}
    batch = (2, 3)[: rank - 2]
    shapes = {"a": (*batch, 5, 4), "b": (*batch, 4, 6)}
    for name, side in zip(shapes, "AB", strict=True):
        if inputs[f"trans{side}"]:
            shapes[name] = (*shapes[name][:-2], *shapes[name][:-3:-1])
        if inputs[f"transBatch{side}"] and rank > 2:
            *outer, rows, columns = shapes[name]
            shapes[name] = (rows, *outer, columns)
    feeds = {name: floats(*shape, seed=1) for name, shape in shapes.items()}
    assert_agrees(fused("FusedMatMul", feeds, {}, alpha=0.25, **inputs), feeds)


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []),
    ("Tanh", []),
    ("Sigmoid", []),
    ("LeakyRelu", [0.3]),
    ("Clip", [-0.5, 0.25]),
    ("HardSigmoid", [0.3, 0.4]),
    ("HardSwish", []),
]


@pytest.mark.parametrize(("activation", "params"), ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolutions(activation: str, params: list[float], has_bias: bool) -> None:
    feeds = {"x": floats(2, 4, 7, 6)}
    known = {"w": floats(8, 2, 3, 3, seed=2), **({"b": floats(8)} if has_bias else {})}
    attributes: dict[str, Any] = {"activation": activation, "pads": [1, 1, 0, 1], "group": 2}
    if params:
        attributes["activation_params"] = params
    assert_agrees(fused("FusedConv", feeds, known, **attributes), feeds, 1e-4)


@pytest.mark.parametrize("bias", ["b", ""])
def test_a_convolution_adds_its_summand_before_the_activation(bias: str) -> None:
    feeds = {name: floats(1, 3, 6, 6, seed=seed) for seed, name in enumerate("xz")}
    known = {"w": floats(3, 3, 1, 1), "b": floats(3)}
    model = fused("FusedConv", feeds, known, activation="Relu", kernel_shape=[1, 1])
    model.graph.node[0].input[:] = ["x", "w", bias, "z"]
    assert_agrees(model, feeds, 1e-4)


@pytest.mark.parametrize(
    ("activation", "attributes"),
    [
        ("Relu", {}),
        ("Elu", {"activation_alpha": 0.5}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
        ("Sigmoid", {}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("Tanh", {}),
        ("ThresholdedRelu", {"activation_alpha": 0.4}),
    ],
)
def test_products_with_a_bias(activation: str, attributes: dict[str, float]) -> None:
    feeds, known = {"x": floats(5, 4)}, {"w": floats(6, 4, seed=1), "c": floats(6, seed=2)}
    inputs = {"activation": activation, "alpha": 0.5, "beta": 2.0, "transB": 1, **attributes}
    assert_agrees(fused("FusedGemm", feeds, known, **inputs), feeds, 1e-4)


def test_an_unknown_activation_is_named() -> None:
    model = fused("FusedGemm", {"x": floats(5, 4)}, {"w": floats(4, 6)}, activation="Mish")
    with pytest.raises(UnsupportedOpError, match="does not know its activation 'Mish'"):
        import_model(model)


def test_a_model_that_onnxruntime_optimized_is_compiled_whole(tmp_path: Any) -> None:
    node = helper.make_node
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "m": (8 * 4 * 4, 16), "v": (16,), "k": (16, 16)}
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w", "b"], ["c"], "conv", strides=[2, 2], pads=[1] * 4),
            node("Relu", ["c"], ["r"]),
            node("Flatten", ["r"], ["f"]),
            node("Gemm", ["f", "m", "v"], ["g"], "gemm"),
            node("Relu", ["g"], ["h"]),
            node("MatMul", ["h", "k"], ["p"], "product"),
            node("Mul", ["p", "scale"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 16])],
        [
            *(numpy_helper.from_array(floats(*s), n) for n, s in shapes.items()),
            numpy_helper.from_array(np.float32(0.125), "scale"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    saved = onnx.load(tmp_path / "optimized.onnx")
    kinds = {n.op_type for n in saved.graph.node}
    assert {"FusedConv", "FusedGemm", "FusedMatMul"} <= kinds
    samples = [floats(1, 3, 8, 8, seed=seed) for seed in range(8)]
    plain, ours = (
        qg.quantize_and_compile(one, samples, progress=False, verify=False)
        for one in (model, saved)
    )
    assert isinstance(ours, qg.CompiledModel)
    for sample in samples:
        np.testing.assert_array_equal(ours(sample), plain(sample))


@pytest.mark.parametrize("op_type", ["FusedMatMul", "FusedGemm"])
def test_operators_of_constants_are_constants(op_type: str) -> None:
    known = {"a": floats(4, 3), "b": floats(3, 5)}
    activation = {"activation": "Relu"} if op_type == "FusedGemm" else {}
    model = fused(op_type, {}, known, alpha=0.5, **activation)
    model.graph.node[0].output[0] = "c"
    model.graph.node.append(helper.make_node("Add", ["x", "c"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("x", 1, [4, 5]))
    assert_agrees(model, {"x": floats(4, 5)})
