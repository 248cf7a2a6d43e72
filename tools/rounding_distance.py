"""Distance of rounded floats from ties: nearer ones may round otherwise on another processor.

Integers are the same everywhere, and so are floats of most operators.  The last bit of some float
functions and sums depends on the processor; where such a value is rounded to an integer, the sample
counts as good if the value lies far enough from a tie.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from quantglow import interpreter
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.support.arrays import Array

FUNCTIONS = ("Exp", "LayerNormalization", "Sigmoid", "Softmax", "Tanh")
"""Float operators whose last bit depends on the processor."""
SUMS = (*FUNCTIONS, "Conv", "Gemm", "Loop", "MatMul", "ReduceMean", "ReduceSum")
"""The same, and float operators whose sums have an order of their own."""
MOST_STEPS = 2.0**15
"""Floats of more steps saturate."""


def inexact_roundings(graph: Graph, inexact: Container[str] = FUNCTIONS) -> list[Node]:
    """The Quantize nodes whose operand depends on the last bit of an inexact operator."""
    tainted: set[Node] = set()
    for node in graph.nodes:
        floats = [x for x in node.operands if x.type.quant is None]
        is_source = node.op in inexact and node.type.quant is None
        if is_source or any(x in tainted for x in floats):
            tainted.add(node)
    return [node for node in graph.nodes if node.op == "Quantize" and node in tainted]


def distance(
    graph: Graph, feeds: Mapping[str, Array], inexact: Container[str] = FUNCTIONS
) -> float:
    """The least distance from a tie, in steps, of all values that such nodes round; at most 0.5."""
    least, watched = 0.5, {node.operands[0]: node for node in inexact_roundings(graph, inexact)}

    def listener(node: Node, value: object) -> None:
        nonlocal least
        if node in watched:
            quant = watched[node].type.quant
            assert quant is not None
            steps = np.asarray(value, np.float64) / quant.scales[0]
            steps = steps[np.abs(steps) < MOST_STEPS]
            least = min(least, float(np.abs(steps - np.floor(steps) - 0.5).min(initial=0.5)))

    if watched:
        interpreter.interpret(graph, feeds, [listener])
    return least
