"""Values that may be infinite or NaN, and int8 networks around infinities that compute numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Abs,
    Add,
    Clip,
    Concat,
    Div,
    Elu,
    Exp,
    LeakyRelu,
    MatMul,
    Max,
    Min,
    Mul,
    Neg,
    Pad,
    PRelu,
    ReduceMax,
    ReduceSum,
    Relu,
    Sigmoid,
    Softmax,
    Sub,
    Tanh,
    Where,
)
from quantglow.ir.types import DType, TensorType
from quantglow.profiling import Histogram, profile
from quantglow.profiling.specials import ABSENT, Specials, node_specials
from quantglow.quantization.plan.tensor_ranges import masked_values, special_values
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.generators.float_graphs.elementwise import ELEMENTS, SHAPE, Form, elementwise_graphs
from tests.generators.float_graphs.layers import STEPS
from tests.generators.float_graphs.networks import networks
from tests.generators.values import LOWS
from tests.support.effort import expensive
from tests.unit.quantization.masked_networks import ATTENTIONS
from tests.unit.quantization.masked_networks import feeds as feeds_of

UNARY = (Abs, Exp, Neg, Relu, Sigmoid, Tanh, Elu, Softmax)
BINARY = (Add, Sub, Mul, Div, Max, Min)
SLOPE = Constant(name="slope", value=np.float32([-0.5]))
FORMS = [
    *map(Form, (*UNARY, *BINARY, Where)),
    Form(Clip, {"low": -1.0}),
    Form(LeakyRelu, {"alpha": 0.5}),
    Form(PRelu, {"slope": SLOPE}),
    Form(Add, {"high": 3.0}),
    *(Form(kind, {"axes": (1,), "keepdims": True}) for kind in (ReduceMax, ReduceSum)),
    *(
        Form(Pad, {"before": (0, 0), "after": widths, "value": value})
        for value in (0.0, -np.inf, np.inf, np.nan)
        for widths in ((0, 0), (0, 1))
    ),
    Form(Concat, {"axis": 0}),
]


def constants() -> st.SearchStrategy[Array]:
    """Small integers, infinities and NaN."""
    numbers = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, np.inf, -np.inf, np.nan])
    return hnp.arrays(np.float32, SHAPE, elements=numbers)


carrying = elementwise_graphs(
    FORMS, most=7, inputs=1, conditions=[ELEMENTS], constants=constants(), recent=2
)
"""Graphs on an input and on Constants, some of which are infinite or NaN."""


def values_of(graph: Graph, feeds: dict[str, Array]) -> dict[Node, Array]:
    values: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        interpret(graph, feeds, [values.__setitem__])
    return values


@given(carrying, st.integers(0, 9))
def test_special_values_are_where_they_may_be(graph: Graph, seed: int) -> None:
    """The special values of each operator follow from those of its operands, except for poles of
    finite operands and NaN that is computed.
    """
    random = np.random.default_rng(seed)
    x, c = random.uniform(0.5, 2, SHAPE).astype(np.float32), random.random(SHAPE) < 0.5
    values = values_of(graph, {"x0": x, "c0": c})

    def specials(node: Node) -> Specials:
        return Histogram.of(values[node]).specials

    for node in graph.compute_nodes():
        divides = isinstance(node, Div) and (values[node.y] == 0).any()
        if not divides:
            actual = specials(node) if node.has(Trait.MOVES) else specials(node) - ABSENT
            assert actual <= node_specials(node, specials), node


MASKS = ("framed", "masked")


@pytest.mark.slow_variants
@pytest.mark.parametrize("recovered", [False, True])
@expensive
@given(
    graph=st.sampled_from(MASKS).flatmap(
        lambda step: networks(tuple(STEPS), most=4, first=("conv", step, "conv"))
    ),
    seed=st.integers(0, 99),
)
def test_the_network_around_a_mask_is_int8(recovered: bool, graph: Graph, seed: int) -> None:
    optimized = optimize(graph)
    random = np.random.default_rng(seed)
    data = [
        {n.name: random.normal(size=n.type.shape).astype(np.float32) for n in optimized.inputs}
        for _ in range(3)
    ]
    known = profile(optimized, data, progress=False)
    quantized = quantize_for_all_shapes(optimized, known, data=data if recovered else None)
    int8, report = quantized.graph, quantized.report
    special, masked = special_values(optimized, known), masked_values(optimized, known)
    for node in report.nodes:
        if (value := optimized.by_name(node.name)) in masked:
            text = "include" if value in special else "a mask is among its values"
            assert (node.precision, text in node.reason) == ("float", True)
    assert any(node.precision == "int8" for node in report.nodes)
    program = qg.compile(int8, num_threads=2)
    for feeds in data:
        results = interpret(int8, feeds)
        for right, actual in zip(results, program.run(None, feeds), strict=True):
            assert np.isfinite(right).all()
            np.testing.assert_allclose(actual, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@expensive
@given(
    name=st.sampled_from(sorted(ATTENTIONS)),
    low=st.sampled_from(LOWS[1:]) | st.floats(LOWS[-1], -1e4, width=32),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    hidden=st.booleans(),
    others=st.lists(st.integers(1, 14), min_size=1, max_size=3),
)
def test_a_finite_mask_hides_as_an_infinite_one_at_every_length(
    name: str, low: float, lengths: list[int], hidden: bool, others: list[int]
) -> None:
    """It makes no difference whether calibration saw the hidden values."""
    outputs = []
    for number in (low, -math.inf):
        model = ATTENTIONS[name](number)
        data = [feeds_of(model, length, seed, hidden) for seed, length in enumerate(lengths * 3)]
        compiled = qg.quantize_and_compile(model, data, num_threads=1, verify=False, progress=False)
        outputs.append([compiled.run(None, feeds_of(model, n, 56)) for n in others])
    for finite, infinite in zip(*outputs, strict=True):
        np.testing.assert_array_equal(finite, infinite)


@pytest.mark.parametrize(
    "reader",
    [
        lambda x, c: Mul(name="y", x=x, y=c),
        lambda x, c: MatMul(name="y", x=x, y=c),
        lambda x, c: Max(name="y", x=x, y=c),
        lambda x, c: Add(name="y", x=x, y=Constant(name="k", value=np.full(3, -2e4, np.float32))),
    ],
    ids=["factors", "weights", "bounds", "shifts"],
)
def test_large_factors_weights_bounds_and_shifts_are_no_masks(reader: Any) -> None:
    x = Input(name="x", tensor=TensorType(DType.F32, (3, 3)))
    large = np.eye(3, dtype=np.float32) * np.float32(-1e9)
    graph = Graph((x,), (("y", reader(x, Constant(name="c", value=large))),), "drawn")
    known = profile(graph, [{"x": np.ones((3, 3), np.float32)}], progress=False)
    assert masked_values(graph, known) == {}
