"""Models with integer weights and float activations: the weights stay, all else becomes int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.ir.ops import GroupedMatMul
from quantglow.ir.ops.groupwise import unpack_codes
from quantglow.support.arrays import Array
from tests.support.combinations import covering

DEPTH, COLUMNS = 40, 24
FORMS = {
    "INT4, channels": (T.INT4, (COLUMNS,), {"axis": 1}),
    "INT4, tensor": (T.INT4, (), {}),
    "UINT4, channels": (T.UINT4, (COLUMNS,), {"axis": 1}),
    "INT8, channels": (T.INT8, (COLUMNS,), {"axis": 1}),
    "INT4, blocks of 16": (T.INT4, (3, COLUMNS), {"axis": 0, "block_size": 16}),
    "INT4, blocks of 8": (T.INT4, (5, COLUMNS), {"axis": 0, "block_size": 8}),
}
LIMITS = {T.INT4: (-8, 7), T.UINT4: (0, 15), T.INT8: (-128, 127)}
rng = np.random.default_rng(0)


def normal(*shape: int, scale: float = 0.3) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def model(form: str, batch: int | str = 2, gemm: bool = False) -> onnx.ModelProto:
    """Convolution, product with integer weights (a Gemm with a bias), product."""
    kind, shape, attributes = FORMS[form]
    low, high = LIMITS[kind]
    codes = rng.integers(low, high + 1, (DEPTH, COLUMNS))
    points = [] if kind != T.UINT4 else ["points"]
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "filters"], ["conv"]),
        node("GlobalAveragePool", ["conv"], ["pool"]),
        node("Flatten", ["pool"], ["flat"]),
        node("DequantizeLinear", ["codes", "scales", *points], ["weights"], **attributes),
        node("Gemm", ["flat", "weights", "bias"], ["product"])
        if gemm
        else node("MatMul", ["flat", "weights"], ["product"], "stored"),
        node("Relu", ["product"], ["active"]),
        node("MatMul", ["active", "last"], ["y"]),
    ]
    arrays = {
        "filters": normal(DEPTH, 3, 3, 3),
        "last": normal(COLUMNS, 8),
        "bias": normal(COLUMNS),
        "scales": np.asarray(rng.uniform(0.01, 0.05, shape), np.float32),
    }
    stored = [helper.make_tensor("codes", kind, (DEPTH, COLUMNS), codes.reshape(-1).tolist())]
    if points:
        stored.append(helper.make_tensor("points", kind, shape, [7] * COLUMNS))
    graph = helper.make_graph(
        nodes,
        "stored",
        [helper.make_tensor_value_info("x", T.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", T.FLOAT, [batch, 8])],
        [*stored, *(numpy_helper.from_array(array, name) for name, array in arrays.items())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def quantized(proto: onnx.ModelProto, **options: Any) -> Any:
    samples = [{"x": normal(2, 3, 8, 8, scale=1.0)} for _ in range(8)]
    return qg.quantize_and_compile(proto, samples, progress=False, num_threads=1, **options)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("form", "gemm"), covering([*FORMS], [False, True]))
def test_all_but_the_stored_weights_becomes_int8(form: str, gemm: bool) -> None:
    report = quantized(model(form, gemm=gemm)).report
    precisions = {layer.name: layer.precision for layer in report.layers}
    others = ("conv", "y") if "of 8" in form else ("conv", "active", "y")
    assert {precisions[name] for name in others} == {"int8"}  # A float Gemm takes its Relu.
    assert report.summary().sqnr_db > 30


@pytest.mark.slow_variants
@pytest.mark.parametrize("form", [form for form in FORMS if "of 8" not in form])
def test_weights_stay_exactly(form: str) -> None:
    proto = model(form)
    graph = quantized(proto, verify=False).graph
    (node,) = (n for n in graph.nodes if isinstance(n, GroupedMatMul))
    codes = unpack_codes(node.w.value, node.bits).astype(np.float32)
    points = node.midpoint if node.zero_points is None else node.zero_points.value[..., None]
    weights = ((codes - points) * node.scales.value[..., None]).reshape(COLUMNS, -1)[:, :DEPTH].T
    (dequantize,) = (n for n in proto.graph.node if n.op_type == "DequantizeLinear")
    operands = [t for t in proto.graph.initializer if t.name in dequantize.input]
    part = helper.make_graph(
        [dequantize], "w", [], [helper.make_tensor_value_info("weights", T.FLOAT, None)], operands
    )
    alone = helper.make_model(part, opset_imports=proto.opset_import, ir_version=10)
    (expected,) = onnx.reference.ReferenceEvaluator(alone).run(None, {})
    np.testing.assert_array_equal(weights, expected)


def test_a_saved_model_computes_the_same_at_every_batch(tmp_path: Path) -> None:
    compiled = quantized(model("INT4, channels", batch="N"), verify=False)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm")
    for batch in (2, 5):
        x = normal(batch, 3, 8, 8, scale=1.0)
        np.testing.assert_array_equal(
            loaded.run(None, {"x": x})[0], compiled.run(None, {"x": x})[0]
        )


def test_stages_keep_the_weights_too() -> None:
    proto = model("INT4, channels")
    samples = [{"x": normal(2, 3, 8, 8, scale=1.0)} for _ in range(4)]
    profile = qg.profile(proto, samples, progress=False)
    int8 = qg.quantize(proto, profile)
    assert any(isinstance(node, GroupedMatMul) for node in int8.nodes)


def test_a_model_with_rounded_activations_is_still_refused() -> None:
    proto = model("INT8, channels")
    scale = numpy_helper.from_array(np.float32(0.05), "step")
    zero = numpy_helper.from_array(np.int8(0), "zero")
    proto.graph.initializer.extend([scale, zero])
    rounding = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["xq"]),
    ]
    nodes = [*rounding, *proto.graph.node]
    nodes[2].input[0] = "xq"
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    with pytest.raises(qg.OptionError, match="quantized already"):
        quantized(proto)
