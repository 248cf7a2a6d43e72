"""Exported models: names, layouts, the QDQ patterns runtimes look for, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given

from quantglow.export.onnx.model import export_onnx
from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import (
    Conv,
    Dequantize,
    Quantize,
    ReduceMean,
    Relu,
    Rescale,
    Reshape,
    Table,
    Transpose,
)
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.support.errors import FileFormatError
from quantglow.transforms.float import optimize
from quantglow.transforms.lowering import lower
from tests.generators.float_graphs.networks import networks
from tests.support.builder import TO_NCHW, TO_NHWC, Builder
from tests.support.effort import moderate
from tests.support.feeds import feeds_of
from tests.unit.importer.onnx.onnx_models import by_onnxruntime


def int8(scale: float = 0.05, zero_point: int = -128, dtype: DType = DType.I8) -> ElementType:
    return ElementType(dtype, QuantParams.per_tensor(scale, zero_point))


def quantized_conv(name: str, x: object, out: ElementType, **fields: object) -> Conv:
    """A pointwise Conv with per-channel weights from 3 channels to 3."""
    weights = ElementType(DType.I8, QuantParams.symmetric([0.01, 0.02, 0.03], 3))
    value = np.random.default_rng(0).integers(-127, 128, (1, 1, 3, 3)).astype(np.int8)
    w = Constant(name=f"{name}:w", value=value, element=weights)
    b = Constant(name=f"{name}:b", value=np.array([5, -70, 900], np.int32))
    return Conv(name=name, x=x, w=w, b=b, out=out, **fields)


def int8_network() -> Graph:
    """Image [1, 3, 4, 5] -> two int8 convolutions in NHWC -> image."""
    x = Input(name="x", tensor=f32(1, 3, 4, 5))
    nhwc = Transpose(name="x:nhwc", x=Quantize(name="x:q", x=x, out=int8(0.02, 0)), perm=TO_NHWC)
    first = quantized_conv("first", nhwc, int8(), low=0.0)
    second = quantized_conv("second", first, int8(0.07, 3), low=0.0)
    y = Transpose(name="y", x=Dequantize(name="second:dq", x=second), perm=TO_NCHW)
    return Graph(inputs=(x,), outputs=(("second", y),))


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def producer(model: onnx.ModelProto, value: str) -> onnx.NodeProto | None:
    return next((n for n in model.graph.node if value in n.output), None)


@pytest.mark.slow
@moderate
@given(networks())
def test_drawn_networks_agree_with_onnxruntime(graph: Graph) -> None:
    feeds = feeds_of(graph)
    for item in (graph, optimize(graph)):
        results = by_onnxruntime(export_onnx(item), feeds, optimized=True)
        for a, b in zip(interpret(item, feeds), results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(a).max()))


@moderate
@given(networks())
def test_importing_an_exported_network_keeps_its_function(graph: Graph) -> None:
    feeds, built = feeds_of(graph), optimize(graph)
    again = import_model(export_onnx(built))
    for a, b in zip(interpret(built, feeds), interpret(again, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(a).max()))


def test_inputs_and_outputs_keep_names_types_and_shapes() -> None:
    model = export_onnx(int8_network())
    (x,), (y,) = model.graph.input, model.graph.output
    assert (x.name, [d.dim_value for d in x.type.tensor_type.shape.dim]) == ("x", [1, 3, 4, 5])
    assert (y.name, [d.dim_value for d in y.type.tensor_type.shape.dim]) == ("second", [1, 3, 4, 5])


def test_an_image_network_is_written_without_transposes() -> None:
    assert "Transpose" not in ops_of(export_onnx(int8_network()))


def test_quantized_conv_stands_between_dequantize_and_quantize() -> None:
    model = export_onnx(int8_network())
    first = next(n for n in model.graph.node if n.op_type == "Conv")
    before = [producer(model, name).op_type for name in first.input]
    after = [n.op_type for n in model.graph.node if first.output[0] in n.input]
    assert (before, after) == (["DequantizeLinear"] * 3, ["QuantizeLinear"])


def test_only_bounds_that_rounding_does_not_imply_are_written() -> None:
    model = export_onnx(int8_network())
    (relu,) = (n for n in model.graph.node if n.op_type == "Relu")
    assert producer(model, relu.input[0]).input[0] == "first:dq"


def test_weights_are_int8_per_output_channel() -> None:
    model = export_onnx(int8_network())
    first = next(n for n in model.graph.node if n.op_type == "Conv")
    dequantize = producer(model, first.input[1])
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    w, scales, _ = (arrays[name] for name in dequantize.input)
    assert (w.dtype, scales.shape, dequantize.attribute[0].i) == (np.int8, (3,), 0)


def test_biases_are_int32_in_steps_of_input_times_weight() -> None:
    model = export_onnx(int8_network())
    first = next(n for n in model.graph.node if n.op_type == "Conv")
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    b, scales, _ = (arrays[name] for name in producer(model, first.input[2]).input)
    assert b.dtype == np.int32
    np.testing.assert_allclose(scales, 0.02 * np.array([0.01, 0.02, 0.03]), rtol=1e-6)


def test_a_residual_is_added_before_the_only_rounding() -> None:
    x = Input(name="x", tensor=f32(1, 4, 5, 3))
    stored = Quantize(name="x:q", x=x, out=int8(0.02, 0))
    node = quantized_conv("sum", stored, int8(), residual=stored, low=0.0)
    model = export_onnx(Graph(inputs=(x,), outputs=(("y", node),)))
    chain = [op for op in ops_of(model) if op != "DequantizeLinear"]
    start = chain.index("Conv")
    assert chain[start : start + 3] == ["Conv", "Add", "QuantizeLinear"]


def test_integer_outputs_are_the_integers_of_the_interpreter() -> None:
    graph = int8_network()
    stored = graph.with_outputs([graph.by_name("second")])
    feeds = feeds_of(stored)
    (actual,) = by_onnxruntime(export_onnx(stored), feeds, optimized=True)
    np.testing.assert_array_equal(actual, interpret(stored, feeds)[0])


def test_integer_inputs_are_fed_as_they_are() -> None:
    x = Input(name="x", tensor=f32(1, 4, 5, 3).with_element(int8(0.02, 0)))
    graph = Graph(inputs=(x,), outputs=(("y", quantized_conv("y", x, int8())),))
    feeds = {"x": np.random.default_rng(0).integers(-128, 128, x.type.shape).astype(np.int8)}
    (actual,) = by_onnxruntime(export_onnx(graph), feeds, optimized=True)
    np.testing.assert_array_equal(actual, interpret(graph, feeds)[0])


def test_int16_values_raise_the_opset() -> None:
    x = Input(name="x", tensor=f32(1, 4, 5, 3))
    stored = Quantize(name="x:q", x=x, out=int8(0.0002, 0, DType.I16))
    graph = Graph(inputs=(x,), outputs=(("y", Dequantize(name="y", x=stored)),))
    model, feeds = export_onnx(graph), feeds_of(graph)
    assert model.opset_import[0].version == 21
    np.testing.assert_array_equal(
        by_onnxruntime(model, feeds, optimized=True)[0], interpret(graph, feeds)[0]
    )


def test_two_roundings_in_a_row_stay_two() -> None:
    x = Input(name="x", tensor=f32(50, 40))
    coarse = Quantize(name="coarse", x=x, out=int8(0.11, 0))
    fine = Rescale(name="fine", x=coarse, out=int8(0.083, 5))
    graph = Graph(inputs=(x,), outputs=(("y", Dequantize(name="y", x=fine)),))
    feeds = feeds_of(graph)
    (actual,) = by_onnxruntime(export_onnx(graph), feeds, optimized=True)
    np.testing.assert_array_equal(actual, interpret(graph, feeds)[0])


def test_an_image_mean_needs_no_transpose_behind_it() -> None:
    b = Builder()
    nhwc = b.transpose(b.input(2, 3, 4, 5), *TO_NHWC)
    mean = ReduceMean(name="mean", x=nhwc, axes=(1, 2), keepdims=False)
    assert ops_of(export_onnx(b.graph(mean))) == ["GlobalAveragePool", "Reshape"]


def test_a_reshape_between_equal_memory_layouts_is_not_written() -> None:
    b = Builder()
    image = Reshape(name="image", x=b.input(1, 1, 4, 5), shape=(1, 4, 5, 1))
    conv = Conv(name="conv", x=image, w=b.drawn(1, 1, 1, 2))
    assert ops_of(export_onnx(b.graph(conv))) == ["Conv", "Transpose"]


def test_outputs_that_are_inputs_constants_or_each_other_get_values_of_their_own() -> None:
    x = Input(name="x", tensor=f32(2, 3))
    c, y = Constant(name="c", value=np.ones(2, np.float32)), Relu(name="y", x=x)
    ends = (("x", x), ("a", x), ("b", c), ("first", y), ("second", y))
    graph = Graph(inputs=(x,), outputs=(*ends, *ends))
    feeds = feeds_of(graph)
    for value, expected in zip(
        by_onnxruntime(export_onnx(graph), feeds, optimized=True),
        interpret(graph, feeds),
        strict=True,
    ):
        np.testing.assert_array_equal(value, expected)


def test_values_keep_their_names_where_these_are_free() -> None:
    names = {name for node in export_onnx(int8_network()).graph.node for name in node.output}
    assert {"x:q", "first", "second"} <= names


def test_the_source_hash_goes_along() -> None:
    x = Input(name="x", tensor=f32(2))
    model = export_onnx(Graph(inputs=(x,), outputs=(("x", x),), source_hash="abc"))
    assert {p.key: p.value for p in model.metadata_props} == {"quantglow.source_hash": "abc"}


def test_expressions_of_lowered_graphs_compute_with_codes() -> None:
    x = Input(name="x", tensor=f32(2, 3))
    int8 = ElementType(DType.I8, QuantParams.per_tensor(0.1, 3))
    quantized = Quantize(name="q", x=x, out=int8)
    graph = lower(Graph((x,), (("q", quantized), ("y", Dequantize(name="y", x=quantized)))))
    feeds = feeds_of(graph)
    for value, expected in zip(
        by_onnxruntime(export_onnx(graph), feeds), interpret(graph, feeds), strict=True
    ):
        np.testing.assert_array_equal(value, expected, strict=True)


def test_the_file_holds_the_returned_model(tmp_path: Path) -> None:
    model = export_onnx(int8_network(), tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx") == model
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileFormatError, match=r"cannot write .*taken"):
        export_onnx(int8_network(), tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize("out", [DType.U8, DType.I8])
def test_tables_of_plain_integers(dtype: DType, out: DType) -> None:
    """An integer product as its operators make it: uint8 operands are stored 128 lower."""
    x = Input(name="x", tensor=TensorType(dtype, (16, 16)))
    values = np.random.default_rng(0).permutation(256).astype(np.uint8).view(out.numpy)
    results = Constant(name="t", value=values)
    node = Table(name="y", x=x, table=results, out=ElementType(out))
    graph = Graph(inputs=(x,), outputs=(("y", node),))
    feeds = {"x": np.arange(256, dtype=np.uint8).view(dtype.numpy).reshape(16, 16)}
    (expected,) = interpret(graph, feeds)
    (actual,) = by_onnxruntime(export_onnx(graph), feeds)
    np.testing.assert_array_equal(actual, expected, strict=True)
