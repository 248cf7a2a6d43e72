"""Chains of functions of one value become one table of the exact composition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    quantized,
    samples_for,
    sandwich,
)

SCALE, SHIFT = constant("scale", [1.7]), constant("shift", -0.4)

CHAINS: dict[str, Callable[[Node], Node]] = {
    "scaled": lambda x: ops.Mul(name="n", x=ops.HardSwish(name="f", x=x), y=SCALE),
    "affine": lambda x: ops.Add(
        name="n", x=ops.Mul(name="m", x=ops.Swish(name="f", x=x), y=SCALE), y=SHIFT, low=0.1
    ),
    "subtracted": lambda x: ops.Sub(name="n", x=SHIFT, y=ops.Mul(name="m", x=x, y=SCALE, high=1.0)),
    "functions": lambda x: ops.Sigmoid(name="n", x=ops.Relu(name="f", x=x)),
}


def table_nodes(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if isinstance(node, ops.Table)]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_is_one_table_within_one_rounding(chain: str) -> None:
    graph = sandwich(CHAINS[chain])
    result, report = quantized(graph)
    assert (table_nodes(result), report.count("float")) == (["n"], 0)
    table = result.by_name("n")
    source, params = table.x, table.type.params
    # The real values of all codes, through the float nodes.
    feeds = samples_for(graph)[0]
    observed: dict[str, np.ndarray] = {}
    interpret(result, feeds, [lambda node, value: observed.__setitem__(node.name, value)])
    codes = observed[source.name].astype(np.float32)
    reals = (codes - source.type.params.zero_point) * np.float32(source.type.params.scale)
    alone = Graph(graph.inputs, (("n", graph.by_name("n")),))
    expected = through(alone, reals)
    steps = np.clip(np.rint(expected / params.scale) + params.zero_point, -128, 127)
    assert np.abs(observed["n"] - steps).max() <= 1


def through(graph: Graph, values: np.ndarray) -> np.ndarray:
    """The float chain on given values of the first convolution's result."""
    built: dict[Node, np.ndarray] = {}
    for node in graph.nodes:
        operands = [built[o] for o in node.operands]
        built[node] = (
            values
            if node.name == "first"
            else node.evaluate(*operands)
            if operands
            else (
                node.value if isinstance(node, ops.Constant) else samples_for(graph)[0][node.name]
            )
        )
    return built[graph.by_name("n")]


def test_a_link_that_stays_float_ends_the_chain() -> None:
    graph = sandwich(CHAINS["affine"])
    result, _ = quantized(graph, nodes_to_exclude=["f"])
    assert isinstance(result.by_name("f"), ops.Swish)
    assert table_nodes(result) == ["n"]


def test_a_link_with_other_readers_is_computed_beside() -> None:
    def two_readers(x: Node) -> Node:
        inner = ops.HardSwish(name="f", x=x)
        scaled = ops.Mul(name="m", x=inner, y=SCALE)
        return ops.Add(name="n", x=scaled, y=conv("side", inner, 8))

    result, _ = quantized(sandwich(two_readers))
    assert sorted(table_nodes(result)) == ["f", "m"]
    assert result.by_name("m").x is result.by_name("f").x


def test_a_scalar_that_widens_the_result_is_no_function() -> None:
    wide = constant("wide", np.ones((1, 1, 1, 1, 1)))
    result, _ = quantized(sandwich(lambda x: ops.Mul(name="n", x=x, y=wide)))
    assert table_nodes(result) == []
