"""Activations that are int16 by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.export.onnx.model import export_onnx
from quantglow.interpreter import interpret
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.types import DType
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.params import accumulator_excess
from quantglow.quantization.quantizer import quantize, quantize_for_all_shapes
from quantglow.support.errors import OptionError
from tests.matrix.harness import assert_agree
from tests.support.effort import moderate
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    quantized,
    samples_for,
    sandwich,
    small_cnn,
    sqnr,
)

WIDE_ONES = {
    "a residual": lambda x: ops.Add(name="n", x=x, y=conv("other", x, 8)),
    "a product": lambda x: ops.Mul(name="n", x=x, y=conv("other", x, 8)),
    "a pool": lambda x: ops.MaxPool(name="n", x=x, kernel=(2, 2)),
    "an average": lambda x: ops.AveragePool(name="n", x=x, kernel=(2, 2)),
    "a relu": lambda x: ops.Relu(name="n", x=x),
    "a hard swish": lambda x: ops.HardSwish(name="n", x=x),
    "a hard sigmoid": lambda x: ops.HardSigmoid(name="n", x=x),
    "a leaky relu": lambda x: ops.LeakyRelu(name="n", x=x, alpha=0.13),
    "an absolute": lambda x: ops.Abs(name="n", x=ops.Neg(name="m", x=x)),
    "a clip": lambda x: ops.Clip(name="n", x=x, low=-0.4, high=0.9),
    "a sigmoid": lambda x: ops.Sigmoid(name="n", x=x),
    "a scaled one": lambda x: ops.Mul(name="n", x=x, y=constant("k", 0.3)),
    "a chain": lambda x: ops.Tanh(name="n", x=ops.Exp(name="e", x=x)),
    "a prelu": lambda x: ops.PRelu(name="n", x=x, slope=constant("k", [0.2] * 8)),
    "a concat": lambda x: ops.Concat(name="n", parts=(x, conv("other", x, 3)), axis=3),
    "a transpose": lambda x: ops.Transpose(name="n", x=x, perm=(0, 2, 1, 3)),
    "a resize": lambda x: ops.Resize(name="n", x=x, sizes=(9, 9), scales=(1.5, 1.5)),
    "a mean": lambda x: ops.ReduceMean(name="n", x=x, axes=(1, 2)),
}
TARGETS = [name for name in LEVELS if runs_here(name)]


def dtype_of(graph: Graph, name: str) -> DType:
    return graph.by_name(name).type.dtype


def test_the_named_value_is_int16_and_symmetric() -> None:
    result, report = quantized(small_cnn(), int16_activations="c1")
    kind = result.by_name("c1").type
    assert (kind.dtype, kind.params.zero_point) == (DType.I16, 0)
    assert report.named("int16") == ["c1"]


def test_an_input_can_be_int16() -> None:
    result, _ = quantized(small_cnn(), int16_activations="x")
    assert dtype_of(result, "x:q") is DType.I16


def test_int16_everywhere_leaves_the_error_of_the_weights() -> None:
    graph = small_cnn()
    plain, wide = quantized(graph)[0], quantized(graph, int16_activations="*")[0]
    assert sqnr(graph, wide) > sqnr(graph, plain) + 2


def test_values_that_share_parameters_share_their_width() -> None:
    result, _ = quantized(small_cnn(), int16_activations="left")
    assert {dtype_of(result, name) for name in ("left", "right", "joined")} == {DType.I16}


@pytest.mark.parametrize("make", WIDE_ONES.values(), ids=WIDE_ONES)
@pytest.mark.parametrize("names", [("first",), ("n",), ("first", "n")], ids=" ".join)
def test_compiled_code_equals_the_interpreter(make: Any, names: tuple[str, ...]) -> None:
    result, _ = quantized(sandwich(make), int16_activations=names)
    assert DType.I16 in {node.type.dtype for node in result.nodes}
    assert_agree(result, samples_for(result, 1)[0], "x86-64")
    assert_agree(result, samples_for(result, 1)[0], TARGETS[0])


@pytest.mark.parametrize("make", WIDE_ONES.values(), ids=WIDE_ONES)
def test_int16_makes_no_operator_worse(make: Any) -> None:
    graph = sandwich(make)
    plain, wide = quantized(graph)[0], quantized(graph, int16_activations=("first", "n"))[0]
    assert sqnr(graph, wide) > sqnr(graph, plain) - 0.1


@pytest.mark.parametrize(
    ("entry", "message"),
    [("nothing", "matches no value"), ("re:zz", "matches no value"), ("prob", "not stored")],
)
def test_names_that_cannot_be_int16_are_refused(entry: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        quantized(small_cnn(), int16_activations=entry)


def products(depth: int) -> Graph:
    """The product of two activations, with ``depth`` terms in each sum."""
    x = image(8)
    parts = [
        ops.Reshape(name=f"{name}_rows", x=conv(name, x, depth, kernel=1), shape=(36, depth))
        for name in ("a", "b")
    ]
    turned = ops.Transpose(name="turned", x=parts[1], perm=(1, 0))
    product = ops.MatMul(name="product", x=parts[0], y=turned)
    shown = ops.Reshape(name="shown", x=product, shape=(1, 6, 6, 36))
    return graph_of(conv("last", shown, 3, kernel=1), inputs=(x,))


def test_one_operand_of_a_short_product_can_be_int16() -> None:
    graph = products(depth=256)
    result, _ = quantized(graph, int16_activations="a")
    assert dtype_of(result, "a") is DType.I16
    assert_agree(result, samples_for(result, 1)[0], TARGETS[0])


@pytest.mark.parametrize(
    ("depth", "names", "message"),
    [(258, ("a",), "too long"), (8, ("a", "b"), "int16 by int16")],
)
def test_products_that_could_overflow_are_refused(
    depth: int, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        quantized(products(depth), int16_activations=names)


def test_a_product_that_overflows_at_another_shape_is_float_there() -> None:
    graph = products(depth=256)
    profiled = profile(graph, samples_for(graph), progress=False)
    config = QuantizationConfig(int16_activations="a")
    decisions = quantize_for_all_shapes(graph, profiled, config).decisions
    dtypes = []
    for depth in (256, 260):
        moved = decisions.apply(products(depth))
        moved.verify()
        product: Any = moved.by_name("product")
        dtypes.append((dtype_of(moved, "a"), product.x.type.dtype))
    assert dtypes == [(DType.I16, DType.I16), (DType.I16, DType.F32)]


def test_a_softmax_reads_eight_bits() -> None:
    graph = sandwich(lambda x: ops.Softmax(name="n", x=x))
    with pytest.raises(OptionError, match="256 powers"):
        quantized(graph, int16_activations="first")
    assert dtype_of(quantized(graph, int16_activations="n")[0], "n") is DType.I16


def deep(seed: int, channels: int, sign: float, bias: float) -> Graph:
    """A product of many equal weights, the worst for an accumulator."""
    rng = np.random.default_rng(seed)
    x = image(channels, 2)
    w = np.full((1, 1, channels, 3), sign) * rng.choice([1.0, 0.9], 3)
    b = Constant(name="b", value=np.full(3, bias, np.float32))
    wide = ops.Conv(name="y", x=x, w=constant("w", w), b=b)
    return graph_of(wide, inputs=(x,))


@moderate
@given(
    seed=st.integers(0, 99),
    channels=st.sampled_from([1, 515, 516, 517, 518, 2000]),
    sign=st.sampled_from([-1.0, 1.0]),
    bias=st.sampled_from([0.0, 3.0, -1e5]),
)
def test_no_int16_input_overflows_a_sum(seed: int, channels: int, sign: float, bias: float) -> None:
    graph = deep(seed, channels, sign, bias)
    result, _ = quantized(graph, int16_activations="x")
    layer: Any = result.by_name("y")
    weights, scales = layer.w.value, np.array(layer.w.type.params.scales)
    arguments = (graph.by_name("b").value, scales, layer.x.type.params, DType.I16)
    assert accumulator_excess(weights, *arguments).max() <= 1
    for extreme in (-1e9, 1e9):
        feeds = {"x": np.full(graph.by_name("x").type.shape, extreme, np.float32)}
        code = -32768 if extreme < 0 else 32767
        exact = code * weights.astype(np.int64).sum(axis=(0, 1, 2)) + layer.b.value
        real = exact * (scales * layer.x.type.params.scale)
        np.testing.assert_allclose(interpret(result, feeds)[0][0, 0, 0], real, rtol=1e-5)


def test_recovery_keeps_the_accumulators_of_int16_layers() -> None:
    graph = deep(1, 2000, 1.0, 0.5)
    samples = samples_for(graph, 8)
    profiled = profile(graph, samples, progress=False)
    config = QuantizationConfig(int16_activations="x")
    result = quantize(graph, profiled, config, data=samples)
    layer: Any = result.by_name("y")
    worst = 32768 * np.abs(layer.w.value.astype(np.int64)).sum(axis=(0, 1, 2))
    assert (worst + np.abs(layer.b.value.astype(np.int64))).max() < 2**31


def test_recovery_improves_int16_layers() -> None:
    graph = small_cnn()
    samples = samples_for(graph, 8)
    profiled = profile(graph, samples, progress=False)
    names = ("c1", "c2", "c3", "joined")
    plain = quantize(graph, profiled, QuantizationConfig(int16_activations=names, recovery=None))
    better = quantize(graph, profiled, QuantizationConfig(int16_activations=names), data=samples)
    assert dtype_of(better, "c1") is DType.I16
    assert sqnr(graph, better) > sqnr(graph, plain)


@pytest.mark.parametrize(
    "names",
    [("c1",), ("x", "c2"), ("joined",), ("pool", "mean")],
    ids=" ".join,
)
def test_onnxruntime_runs_the_exported_model_with_the_same_numbers(names: tuple[str, ...]) -> None:
    graph = small_cnn()
    result, _ = quantized(graph, int16_activations=names)
    model = export_onnx(result)
    assert model.opset_import[0].version == 21
    for feeds in samples_for(graph, 2, seed=7):
        (actual,) = by_onnxruntime(model, feeds, optimized=True)
        np.testing.assert_allclose(actual, interpret(result, feeds)[0], atol=0.02)


def nodes_of(graph: Graph, kind: type[Node]) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node, kind)]


def test_a_clip_of_int16_is_arithmetic() -> None:
    graph = sandwich(lambda x: ops.Clip(name="n", x=x, low=-0.4, high=0.9))
    result, _ = quantized(graph, int16_activations=("first", "n"))
    assert not nodes_of(result, ops.Table)
