"""Unsigned storage changes codes and zero points, and nothing that can be seen from outside."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Add,
    Concat,
    Dequantize,
    Elementwise,
    Gemm,
    MaxPool,
    Pad,
    Reshape,
    Table,
)
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.lowering import bias_to_uint8, lower

INT8 = ElementType(DType.I8, QuantParams.per_tensor(0.1, -5))


def int8_input(*shape: int) -> Input:
    return Input(name="x", tensor=TensorType(INT8.dtype, shape, INT8.quant))


def weights() -> Constant:
    codes = np.array([[1, -2], [3, -127]], np.int8)
    return Constant(
        name="w", value=codes, element=ElementType(DType.I8, QuantParams.per_tensor(0.1, 0))
    )


def graph_of(*outputs: Node) -> Graph:
    inputs = {n for o in outputs for n in Graph((), (("o", o),)).nodes if isinstance(n, Input)}
    return Graph(tuple(inputs), tuple((f"out{i}", o) for i, o in enumerate(outputs)))


def codes(*shape: int) -> np.ndarray:
    return np.resize(np.arange(-128, 128), shape).astype(np.int8)


def assert_same_codes(graph: Graph) -> None:
    """Every stage gives the integers of the graph as it was."""
    feeds = {i.name: codes(*i.type.shape) for i in graph.inputs}
    expected = interpret(graph, feeds)
    for changed in (bias_to_uint8(graph), lower(graph)):
        changed.verify()
        for a, b in zip(interpret(changed, feeds), expected, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


def tabulated(x: Node, element: ElementType | None, name: str = "t") -> Table:
    values = Constant(name=f"{name}:table", value=codes(256)[::-1].copy(), element=element)
    return Table(name=name, x=x, table=values, out=INT8)


@pytest.mark.parametrize("element", [INT8, None])
def test_a_table_of_int8_results_is_converted(element: ElementType | None) -> None:
    assert_same_codes(graph_of(tabulated(int8_input(256), element)))


def test_two_tables_may_share_their_values() -> None:
    first = tabulated(int8_input(256), INT8)
    second = Table(name="u", x=first, table=first.table, out=INT8)
    assert_same_codes(graph_of(second, first))


def test_readers_of_integers_get_them_as_they_were() -> None:
    x = MaxPool(name="pool", x=int8_input(1, 4, 4, 2), kernel=(2, 2))
    total = Elementwise(
        name="sum",
        args=(x, x),
        expression=call("iadd", arg(0), arg(1)),
        out=ElementType(DType.I32),
    )
    assert_same_codes(graph_of(total, x))


def test_inputs_outputs_and_constants_keep_their_type() -> None:
    x = int8_input(2, 2)
    added = Add(name="a", x=x, y=x, out=INT8)
    constant = Constant(name="c", value=codes(3), element=INT8)
    assert_same_codes(graph_of(x, added, added, constant))


def test_weights_that_are_an_activation_too_serve_as_both() -> None:
    x, w = int8_input(2, 2), weights()
    product = Gemm(name="g", x=x, w=w, out=w.type.element)
    assert_same_codes(graph_of(product, Concat(name="j", parts=(product, w), axis=0), w))


def test_weights_stay_signed() -> None:
    w = weights()
    graph = bias_to_uint8(graph_of(Gemm(name="g", x=int8_input(2, 2), w=w, out=INT8)))
    assert graph.by_name("w") is w


def test_padding_and_pooling_use_the_unsigned_zero_and_lowest_code() -> None:
    padded = Pad(name="p", x=int8_input(1, 2, 2, 3), before=(0, 1, 1, 0), after=(0, 0, 1, 0))
    pooled = MaxPool(name="m", x=padded, kernel=(2, 2), pads=(1, 1, 0, 0))
    assert_same_codes(graph_of(padded, pooled, Dequantize(name="d", x=pooled)))


def test_only_tables_at_the_border_are_added() -> None:
    x = int8_input(2, 2)
    moved = bias_to_uint8(graph_of(Reshape(name="r", x=x, shape=(4,))))
    assert [n.op for n in moved.compute_nodes()] == ["Table", "Reshape", "Table"]
