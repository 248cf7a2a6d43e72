"""Integers as inputs and outputs: the same integers as rounding outside of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Dequantize, Quantize, Transpose
from quantglow.ir.ops.arithmetic import dequantize, quantize
from quantglow.ir.types import DType, ElementType, QuantParams, f32
from quantglow.quantization.converter import with_integer_inputs, with_integer_outputs
from tests.support.small_network import small_model, small_samples

STEPS = ElementType(DType.I8, QuantParams.per_tensor(0.1, 3))
OTHER = ElementType(DType.I8, QuantParams.per_tensor(0.2, 3))


@pytest.fixture(scope="module", params=[False, True], ids=["float end", "int8 end"])
def int8(request: pytest.FixtureRequest) -> Graph:
    config = qg.QuantizationConfig(quantize_output=request.param)
    graph = qg.import_model(small_model())
    profile = qg.profile(graph, small_samples(), progress=False)
    return qg.quantize(graph, profile, config, data=small_samples())


def test_inputs_may_be_rounded_outside(int8: Graph) -> None:
    actual = with_integer_inputs(int8)
    (x,) = actual.inputs
    actual.verify()
    for sample in small_samples():
        rounded = quantize(sample, x.type.element)
        for one, expected in zip(
            qg.interpret(actual, {"x": rounded}), qg.interpret(int8, {"x": sample}), strict=True
        ):
            np.testing.assert_array_equal(one, expected)


def test_outputs_may_be_converted_outside(int8: Graph) -> None:
    actual = with_integer_outputs(int8)
    actual.verify()
    feeds = {"x": small_samples()[0]}
    kinds = [node.type for _, node in actual.outputs]
    assert kinds[1].dtype is DType.I8
    for kind, one, expected in zip(
        kinds, qg.interpret(actual, feeds), qg.interpret(int8, feeds), strict=True
    ):
        as_floats = one if kind.quant is None else dequantize(one, kind.quant)
        np.testing.assert_array_equal(as_floats, expected)


def graph_of(*readers: ElementType) -> Graph:
    """An input, transposed, and rounded once for each reader."""
    x = Input(name="x", tensor=f32(2, 3))
    turned = Transpose(name="turned", x=x, perm=(1, 0))
    rounded = [Quantize(name=f"q{i}", x=turned, out=out) for i, out in enumerate(readers)]
    ends = [Dequantize(name=f"y{q.name}", x=q) for q in rounded]
    return Graph((x,), tuple((end.name, end) for end in ends))


def test_a_rounding_behind_another_order_is_found() -> None:
    actual = with_integer_outputs(with_integer_inputs(graph_of(STEPS, STEPS)))
    assert [node.op for node in actual.nodes] == ["Input", "Transpose"]
    assert actual.inputs[0].type.element == STEPS


def test_inputs_that_are_rounded_in_two_ways_stay_float() -> None:
    assert with_integer_inputs(graph_of(STEPS, OTHER)).inputs[0].type == f32(2, 3)


def test_inputs_whose_floats_are_read_stay_float() -> None:
    graph = graph_of(STEPS)
    read = replace(graph, outputs=(*graph.outputs, ("same", graph.inputs[0])))
    assert with_integer_inputs(read).inputs[0].type == f32(2, 3)
    assert with_integer_inputs(replace(graph, outputs=())).inputs[0].type == f32(2, 3)
