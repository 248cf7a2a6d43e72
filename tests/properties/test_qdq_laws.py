"""Fusing the operators between roundings keeps what a network computes, and every rounding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Dequantize, Quantize
from quantglow.ir.ops.arithmetic import quantize
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.profiling.histogram import Range
from quantglow.quantization.plan.params import activation_element, quantize_weights
from quantglow.quantization.qdq import fuse_quantized
from quantglow.runtime.programs.build import Compiler
from tests.generators.float_graphs.networks import networks
from tests.support.effort import expensive, moderate
from tests.support.feeds import feeds_of

TOLERANCE = 0.04
"""Maximum difference: a tie moves a value by a step, 1/255 of its range, and later ones by a few
more."""


def with_roundings(graph: Graph, share: float, seed: int) -> Graph:
    """A network with Quantize and Dequantize behind some values, and quantized weights."""
    random = np.random.default_rng(seed)
    values: dict[Node, np.ndarray] = {}
    interpret(graph, feeds_of(graph), [values.__setitem__])
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[o] for o in node.operands)
        built = node.with_operands(operands)
        if isinstance(node, Contraction) and isinstance(built.w, Constant):
            built = built.with_operands((operands[0], stored(built.w), *operands[2:]))
        is_value = not isinstance(node, Constant) and node.type.size > 0
        is_value = is_value and bool(np.isfinite(values[node]).all())
        if is_value and (isinstance(node, Input) or random.random() < share):
            built = rounded(built, values[node])
        new[node] = built
    return graph.with_outputs(new[node] for _, node in graph.outputs)


def rounded(node: Node, observed: np.ndarray) -> Node:
    """A Quantize for the values seen, and its Dequantize."""
    element = activation_element(Range(float(observed.min()), float(observed.max())))
    codes = Quantize(name=f"{node.name}:codes", x=node, out=element)
    return Dequantize(name=f"{node.name}:real", x=codes)


def stored(w: Constant) -> Node:
    weights = quantize_weights(w.value, None, QuantParams.per_tensor(1.0, 0))
    element = ElementType(DType.I8, QuantParams.symmetric(weights.scales, w.type.rank - 1))
    assert np.array_equal(quantize(w.value, element), weights.weights)
    codes = Constant(name=f"{w.name}:codes", value=weights.weights, element=element)
    return Dequantize(name=f"{w.name}:real", x=codes)


def relative_error(expected: np.ndarray, actual: np.ndarray) -> float:
    return float(np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1))


@moderate
@given(networks(), st.sampled_from([0.3, 0.7, 1.0]), st.integers(0, 2**16))
def test_fusing_changes_ties_only(graph: Graph, share: float, seed: int) -> None:
    before = with_roundings(graph, share, seed)
    before.verify()
    after = fuse_quantized(before)
    after.verify()
    feeds = feeds_of(before)
    for a, b in zip(interpret(before, feeds), interpret(after, feeds), strict=True):
        assert relative_error(a, b) <= TOLERANCE


@expensive
@given(networks(), st.sampled_from([0.5, 1.0]), st.integers(0, 2**16))
def test_fused_networks_compile_to_the_interpreters_integers(
    graph: Graph, share: float, seed: int
) -> None:
    after = fuse_quantized(with_roundings(graph, share, seed))
    feeds = feeds_of(after)
    actual = Compiler.of("native", 1).compile(after).executable.run(feeds)
    for a, b in zip(interpret(after, feeds), actual, strict=True):
        assert relative_error(a, b) <= TOLERANCE
