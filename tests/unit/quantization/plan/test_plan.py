"""Operators that become int8, and their parameters."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir import ops
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize
from tests.support.float_islands import float_islands
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    quantized,
    samples_for,
    small_cnn,
    sqnr,
)


def count(graph: object, kind: type[Node]) -> int:
    return sum(isinstance(n, kind) for n in graph.nodes)  # type: ignore[attr-defined]


def test_a_small_cnn_has_one_quantize_and_no_dequantize() -> None:
    graph = small_cnn()
    result, report = quantized(graph)
    assert (count(result, ops.Quantize), count(result, ops.Dequantize)) == (1, 0)
    assert count(result, ops.Rescale) == 0
    assert [n.name for n in report.kept_float] == ["prob"]


def test_a_small_cnn_keeps_its_accuracy() -> None:
    graph = small_cnn()
    result, _ = quantized(graph)
    assert sqnr(graph, result) > 30


def test_the_last_product_gives_float_without_rounding() -> None:
    result, _ = quantized(small_cnn())
    assert result.by_name("fc").out is None  # type: ignore[attr-defined]


def test_quantize_output_rounds_the_last_product() -> None:
    result, report = quantized(small_cnn(), quantize_output=True)
    assert report.count("float") == 0
    assert isinstance(result.outputs[0][1], ops.Dequantize)


def test_concat_parts_share_their_parameters() -> None:
    result, _ = quantized(small_cnn())
    left, right = (result.by_name(n).type.quant for n in ("left", "right"))
    assert left == right == result.by_name("joined").type.quant


def test_a_narrow_concat_part_with_other_readers_keeps_its_scale() -> None:
    x = image()
    a = conv("a", x, 4, low=0.0)
    wide = ops.Mul(name="wide", x=conv("b", x, 4), y=constant("k", 100.0))
    joined = ops.Concat(name="joined", parts=(a, wide), axis=3)
    graph = graph_of(conv("c", joined, 4), conv("d", a, 4), inputs=(x,))
    result, _ = quantized(graph)
    assert result.by_name("a").type.params.scale * 16 < result.by_name("joined").type.params.scale
    assert count(result, ops.Rescale) == 1
    assert sqnr(graph, result) > 28


def test_a_narrow_concat_part_without_other_readers_needs_no_rescale() -> None:
    x = image()
    wide = ops.Mul(name="wide", x=conv("b", x, 4), y=constant("k", 100.0))
    joined = ops.Concat(name="joined", parts=(conv("a", x, 4), wide), axis=3)
    result, _ = quantized(graph_of(conv("c", joined, 4), inputs=(x,)))
    assert count(result, ops.Rescale) == 0


def test_light_nodes_between_float_nodes_stay_float() -> None:
    x = image()
    moved = ops.Transpose(name="t", x=ops.Add(name="a", x=x, y=x), perm=(0, 2, 1, 3))
    graph = graph_of(ops.LRN(name="lrn", x=moved, size=3), inputs=(x,))
    result, report = quantized(graph)
    assert report.count("int8") == 0
    assert result is graph


def test_an_operator_without_an_int8_form_is_an_island_with_a_reason() -> None:
    x = image()
    middle = ops.LRN(name="lrn", x=conv("a", x, 8), size=3)
    graph = graph_of(conv("b", middle, 4), inputs=(x,))
    result, report = quantized(graph)
    assert [n.name for n in float_islands(result)] == ["lrn"]
    assert "squares" in report.kept_float[0].reason
    assert sqnr(graph, result) > 28


def test_a_float_conv_result_takes_its_residual_in_float() -> None:
    x = image()
    a = conv("a", x, 8)
    graph = graph_of(conv("b", a, 8, residual=a), inputs=(x,))
    result, _ = quantized(graph)
    assert result.by_name("b").residual.type.dtype.is_float  # type: ignore[attr-defined]
    assert sqnr(graph, result) > 30


def test_a_residual_that_only_a_float_result_reads_is_not_rounded() -> None:
    x = image()
    graph = graph_of(conv("b", x, 8, residual=conv("a", x, 8)), inputs=(x,))
    result, _ = quantized(graph)
    assert result.by_name("a").out is None  # type: ignore[attr-defined]


def test_a_tensor_that_was_always_zero_divides_nothing_by_zero() -> None:
    x = image()
    dead = conv("dead", x, 8, low=0.0)
    dead = ops.Conv(
        name="dead",
        x=x,
        w=constant("w", np.zeros((1, 1, 8, 8))),
        b=constant("b", np.full(8, -1.0)),
        low=0.0,
    )
    graph = graph_of(conv("next", dead, 4), inputs=(x,))
    result, _ = quantized(graph)
    assert sqnr(graph, result) > 40


def test_performance_fixes_zero_points() -> None:
    result, _ = quantized(small_cnn(), preset="performance")
    zero_points = {
        n.type.quant.zero_point for n in result.nodes if n.type.quant and n.type.quant.axis is None
    }
    assert zero_points <= {0, -128}


def test_quantizing_twice_gives_the_same_graph_text() -> None:
    graph = small_cnn()
    profiled = profile(graph, samples_for(graph), progress=False)
    one, other = (quantize(graph, profiled, QuantizationConfig()) for _ in range(2))
    assert [repr(n) for n in one.nodes] == [repr(n) for n in other.nodes]


@pytest.mark.parametrize("hide", ["add", "where"])
def test_hidden_attention_scores_do_not_blind_the_softmax(hide: str) -> None:
    x = Input(name="x", tensor=f32(1, 8, 16))
    y = Input(name="y", tensor=f32(1, 16, 8))
    scores = ops.MatMul(name="scores", x=x, y=y)
    hidden = np.triu(np.ones((8, 8)), 1)
    if hide == "add":
        masked: Node = ops.Add(name="masked", x=scores, y=constant("mask", hidden * -1e9))
    else:
        low = constant("low", -1e9)
        mask = Constant(name="mask", value=hidden > 0)
        masked = ops.Where(name="masked", condition=mask, x=low, y=scores)
    shares = ops.Softmax(name="shares", x=masked)
    graph = graph_of(ops.MatMul(name="m", x=shares, y=x), inputs=(x, y))
    result, report = quantized(graph)
    assert report.count("float") == 2
    assert sqnr(graph, result) > 30


def exponential_of(x: Node) -> Node:
    return ops.Exp(name="divisor", x=ops.Mul(name="steep", x=x, y=constant("k", 4.0)))


def divided_by_the_transposed(y: Node) -> Node:
    turned = ops.Transpose(name="turned", x=y, perm=(0, 2, 1, 3))
    return ops.Div(name="quotient", x=constant("one", 1.0), y=turned)


UNBOUNDED = {
    "Div": lambda y: ops.Div(name="quotient", x=constant("one", 1.0), y=y),
    "Pow": lambda y: ops.Pow(name="power", x=y, y=constant("e", [-1.0, 2.0, -0.5, 1.0])),
    "Log": lambda y: ops.Log(name="log", x=y),
    "Reciprocal": lambda y: ops.Reciprocal(name="inverse", x=y),
    "behind": divided_by_the_transposed,
}


@pytest.mark.parametrize("case", UNBOUNDED)
def test_a_divisor_that_int8_would_round_to_zero_stays_float(case: str) -> None:
    x = image()
    divisor = exponential_of(conv("a", x, 4))
    pooled = ops.MaxPool(name="p", x=divisor, kernel=(2, 2), strides=(2, 2))
    unbounded = UNBOUNDED[case](divisor)
    graph = graph_of(unbounded, conv("b", pooled, 4), inputs=(x,))
    result, report = quantized(graph, nodes_to_exclude=[unbounded.name])
    reasons = {n.name: n.reason for n in report.kept_float}
    assert "in int8 a small value is 0" in reasons["divisor"]
    assert all(np.isfinite(interpret(result, f)[0]).all() for f in samples_for(graph))


def test_a_dividend_may_be_int8() -> None:
    x = image()
    numerator = ops.Sigmoid(name="s", x=conv("a", x, 4))
    quotient = ops.Div(name="quotient", x=numerator, y=ops.Exp(name="e", x=conv("b", x, 4)))
    _, report = quantized(graph_of(quotient, conv("c", numerator, 4), inputs=(x,)))
    assert {n.name for n in report.kept_float} == {"quotient", "e"}


def test_a_sum_that_only_float_operators_read_is_not_rounded() -> None:
    x = Input(name="x", tensor=f32(1, 8, 16))
    y = Input(name="y", tensor=f32(1, 16, 16))
    product = ops.MatMul(name="product", x=x, y=y)
    rows = ops.Reshape(name="same", x=product, shape=(1, 8, 16))
    total = ops.Add(name="total", x=rows, y=x)
    graph = graph_of(ops.LayerNormalization(name="normal", x=total), inputs=(x, y))
    feeds = {n.name: np.random.default_rng(0).normal(size=n.type.shape) for n in graph.inputs}
    recorded = profile(graph, [{k: v.astype(np.float32) for k, v in feeds.items()}])
    kinds = {n.name: n.type for n in quantize(graph, recorded).nodes}
    assert kinds["total"].dtype.is_float
    assert kinds["product"].dtype.is_float


def test_a_value_that_is_only_stored_for_its_second_type_gets_two_names() -> None:
    x, other = image(), Input(name="other", tensor=f32(1, 6, 6, 8))
    wide = ops.Mul(name="wide", x=conv("before", other, 8), y=constant("k", 1000.0))
    joined = ops.Concat(name="joined", parts=(x, wide), axis=3)
    graph = graph_of(conv("after", joined, 4), conv("beside", x, 4), inputs=(x, other))
    int8, _ = quantized(graph)
    assert {"x:q", "x:q_2"} <= {node.name for node in int8.nodes}


@pytest.mark.parametrize(("kind", "bound"), [(ops.Min, np.inf), (ops.Max, -np.inf)])
def test_an_infinite_constant_keeps_its_operator_float(kind: type[Node], bound: float) -> None:
    x = image()
    bounds = constant("bounds", [bound] + [0.5] * 7)
    bounded = kind(name="bounded", x=conv("before", x, 8), y=bounds)  # type: ignore[call-arg]
    _, report = quantized(graph_of(conv("after", bounded, 4), inputs=(x,)))
    (kept,) = report.kept_float
    assert (kept.name, kept.reason) == ("bounded", f"its constant 'bounds' includes {bound}")
