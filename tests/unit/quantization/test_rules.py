"""Every operator's int8 form stays close to its float form."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir import ops
from quantglow.ir.graph.node import OPS, Constant, Input, Node
from quantglow.ir.ops.arithmetic import quantization, quantize
from quantglow.ir.types import DType, f32
from quantglow.profiling import Range
from quantglow.quantization.plan.eligibility import NO_INT8_FORM
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.rules import find_rule, tabulate
from tests.generators.unary_functions import FUNCTIONS, Declared
from tests.support.float_islands import float_islands
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    quantized,
    sandwich,
    sqnr,
)

CHANNEL_VALUES = np.linspace(-1.5, 2, 8)
STEPPED = ("Ceil", "Floor", "Shrink", "ThresholdedRelu")
SMOOTH = [form for form in FUNCTIONS if not form.positive and form.name not in STEPPED]
"""Smooth enough for a sandwich; the others are tested as tables."""

OTHERS = {
    "Add": lambda x: ops.Add(name="n", x=x, y=conv("side", x, 8)),
    "Add constant": lambda x: ops.Add(name="n", x=x, y=constant("k", CHANNEL_VALUES)),
    "Sub": lambda x: ops.Sub(name="n", x=constant("k", CHANNEL_VALUES), y=x),
    "Mul": lambda x: ops.Mul(name="n", x=x, y=conv("side", x, 8)),
    "Mul constant": lambda x: ops.Mul(name="n", x=x, y=constant("k", CHANNEL_VALUES)),
    "Max": lambda x: ops.Max(name="n", x=x, y=conv("side", x, 8)),
    "Min": lambda x: ops.Min(name="n", x=x, y=constant("k", CHANNEL_VALUES)),
    "PRelu": lambda x: ops.PRelu(name="n", x=x, slope=constant("k", CHANNEL_VALUES)),
    "MaxPool": lambda x: ops.MaxPool(name="n", x=x, kernel=(3, 3), pads=(1, 1, 1, 1)),
    "AveragePool": lambda x: ops.AveragePool(name="n", x=x, kernel=(3, 3), pads=(1, 1, 1, 1)),
    "ReduceMean": lambda x: ops.ReduceMean(name="n", x=x, axes=(1, 2)),
    "ReduceMax": lambda x: ops.ReduceMax(name="n", x=x, axes=(1, 2)),
    "ReduceMin": lambda x: ops.ReduceMin(name="n", x=x, axes=(1, 2)),
    "Concat": lambda x: ops.Concat(name="n", parts=(x, conv("side", x, 3)), axis=3),
    "Slice": lambda x: ops.Slice(
        name="n", x=x, starts=(0, 1, 5, 0), sizes=(1, 3, 3, 8), steps=(1, 2, -2, 1)
    ),
    "Pad": lambda x: ops.Pad(name="n", x=x, before=(0, 1, 0, 0), after=(0, 0, 2, 0), value=0.7),
    "Reshape": lambda x: ops.Reshape(name="n", x=x, shape=(1, 4, 9, 8)),
    "Transpose": lambda x: ops.Transpose(name="n", x=x, perm=(0, 2, 1, 3)),
    "Expand": lambda x: ops.Expand(
        name="n", x=ops.ReduceMean(name="m", x=x, axes=(1, 2)), shape=(1, 2, 3, 8)
    ),
    "Resize nearest": lambda x: ops.Resize(name="n", x=x, sizes=(12, 12), scales=(2.0, 2.0)),
    "Resize linear": lambda x: ops.Resize(
        name="n", x=x, sizes=(9, 9), scales=(1.5, 1.5), mode="linear"
    ),
    "Softmax": lambda x: ops.Softmax(name="n", x=x),
    "LayerNormalization": lambda x: ops.LayerNormalization(
        name="n",
        x=ops.MaxPool(name="m", x=x, kernel=(2, 2)),
        gamma=constant("gamma", CHANNEL_VALUES),
        beta=constant("beta", CHANNEL_VALUES[::-1]),
    ),
    "ConvTranspose": lambda x: ops.ConvTranspose(
        name="n",
        x=x,
        w=constant("k", np.random.default_rng(3).normal(size=(2, 2, 8, 6)) * 0.3),
        b=constant("kb", np.linspace(-1, 1, 6)),
        strides=(2, 2),
    ),
    "grouped Conv": lambda x: ops.Conv(
        name="n",
        x=x,
        w=constant("k", np.random.default_rng(3).normal(size=(3, 3, 2, 8)) * 0.3),
        group=4,
        dilations=(2, 2),
    ),
}


@pytest.mark.parametrize("form", SMOOTH, ids=str)
def test_unary_functions_become_accurate_tables(form: Declared) -> None:
    graph = sandwich(lambda x: form.node("n", x))
    result, report = quantized(graph)
    assert report.count("float") == 0
    assert float_islands(result) == ()
    assert sqnr(graph, result) > 26


@pytest.mark.parametrize("case", OTHERS)
def test_int8_forms_are_accurate(case: str) -> None:
    graph = sandwich(OTHERS[case])
    result, report = quantized(graph)
    assert report.count("float") == 0
    assert float_islands(result) == ()
    assert sqnr(graph, result) > 26


def test_mat_mul_of_two_activations_is_int8() -> None:
    x = Input(name="x", tensor=f32(2, 5, 16))
    y = Input(name="y", tensor=f32(2, 16, 7))
    graph = graph_of(ops.MatMul(name="m", x=x, y=y), inputs=(x, y))
    result, report = quantized(graph)
    assert report.count("int8") == 1
    assert sqnr(graph, result) > 32


@pytest.mark.parametrize("preset", ["mixed", "performance"])
@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile", "mse"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_every_option_gives_an_accurate_network(
    preset: str, method: str, per_channel: bool
) -> None:
    graph = sandwich(OTHERS["Add"])
    result, _ = quantized(
        graph, preset=preset, calibrate_method=method, per_channel=per_channel, percentile=99.9
    )
    assert sqnr(graph, result) > 22


def test_every_operator_has_a_rule_or_a_reason() -> None:
    without = {
        op.__name__
        for op in OPS.values()
        if not find_rule(op) and not any(kind in NO_INT8_FORM for kind in op.__mro__)
    }
    assert without == {"Input", "Constant"}


@pytest.mark.parametrize("form", FUNCTIONS, ids=str)
def test_tables_hold_the_exact_function_at_every_code(form: Declared) -> None:
    node = form.node("n", image())
    x, element = (activation_element(Range(low, 3.0)) for low in (0.0, -1.0))
    inputs = quantization(x)
    table = tabulate(node.function, x, element)
    codes = np.arange(-128, 128)
    reals = node.evaluate(((codes - inputs.zero_point) * inputs.scale).astype(np.float64))
    near = quantize(np.nan_to_num(reals, posinf=1e30, neginf=-1e30), element)
    assert np.abs(table.astype(int) - near).max() <= 1


def test_a_table_stays_on_the_side_of_the_finite_results_at_a_pole() -> None:
    """0 stands for small numbers of the sign that calibration saw, not for an infinite result."""
    x = image()
    reciprocal, log = ops.Reciprocal(name="n", x=x).function, ops.Log(name="n", x=x).function
    above, below = activation_element(Range(0.0, 4.0)), activation_element(Range(-4.0, 0.0))
    assert tabulate(reciprocal, above, activation_element(Range(0.0, 5.0)))[0] == 127
    assert tabulate(reciprocal, below, activation_element(Range(-5.0, 0.0)))[-1] == -128
    wide = activation_element(Range(-9.0, 2.0))
    actual = tabulate(log, above, wide)[0]
    assert actual == quantize(np.log(quantization(above).scale / 4), wide)


def test_a_relu_on_a_never_negative_tensor_vanishes() -> None:
    x = image()
    first = conv("first", x, 8, low=0.0)
    graph = graph_of(conv("a", ops.Relu(name="r", x=first), 4), conv("b", first, 4), inputs=(x,))
    result, _ = quantized(graph)
    assert not any(isinstance(n, ops.Table) for n in result.nodes)


def test_a_constant_that_only_moves_is_quantized_at_compile_time() -> None:
    k = constant("k", np.linspace(-1, 1, 36 * 2).reshape(1, 6, 6, 2))
    graph = sandwich(lambda x: ops.Concat(name="n", parts=(x, k), axis=3))
    result, _ = quantized(graph)
    joined: Node = result.by_name("n")
    assert isinstance(joined.operands[1], Constant)
    assert sqnr(graph, result) > 28


def test_a_float_layer_keeps_the_weights_that_bear_an_int8_layers_name() -> None:
    x = image(8)
    w, b = constant("a:w", np.full((1, 1, 8, 8), 0.1)), constant("a:b", np.ones(8))
    first = ops.Conv(name="a", x=x, w=w, b=b)
    result, _ = quantized(
        graph_of(ops.Conv(name="c", x=first, w=w, b=b), inputs=(x,)), ignored_scope=["c"]
    )
    assert [result.by_name(n).w.type.dtype for n in "ac"] == [DType.I8, DType.F32]
