"""Lowered quantized operators give the same integers, to the last bit of every multiplier.

int16 results with fine steps: one unit in the last place of a multiplier changes some of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Add,
    Dequantize,
    Elementwise,
    Max,
    Min,
    Mul,
    PRelu,
    Quantize,
    Rescale,
    Sub,
)
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.lowering import lower
from tests.support.effort import moderate

FINE = ElementType(DType.I16, QuantParams.per_tensor(0.003, 0))
COARSE = ElementType(DType.I16, QuantParams.per_tensor(0.6, 0))
FINE_BYTES = ElementType(DType.I8, QuantParams.per_tensor(0.02, 3))
STEEP = np.linspace(-1.7, 1.3, 16, dtype=np.float32)

CASES: dict[str, Callable[[Node, Node, Node], Node]] = {
    "add": lambda x, y, c: Add(name="r", x=x, y=y, out=FINE),
    "sub": lambda x, y, c: Sub(name="r", x=x, y=y, out=FINE),
    "max": lambda x, y, c: Max(name="r", x=x, y=y, out=FINE),
    "min-clipped": lambda x, y, c: Min(name="r", x=x, y=y, low=-1.0, high=50.0, out=FINE),
    "mul": lambda x, y, c: Mul(name="r", x=x, y=y, out=COARSE),
    "add-constant": lambda x, y, c: Add(name="r", x=x, y=c, out=FINE),
    "constant-sub": lambda x, y, c: Sub(name="r", x=c, y=x, out=FINE),
    "mul-constant": lambda x, y, c: Mul(name="r", x=c, y=x, out=FINE),
    "prelu": lambda x, y, c: PRelu(name="r", x=x, slope=c, out=FINE),
    "rescale": lambda x, y, c: Rescale(name="r", x=x, out=FINE),
    "rescale-wide": lambda x, y, c: Rescale(
        name="r", x=Add(name="a", x=x, y=y, out=FINE), out=ElementType(DType.I16, y.type.quant)
    ),
    "chain": lambda x, y, c: Add(name="r", x=Mul(name="m", x=x, y=y, out=COARSE), y=x, out=FINE),
    "bounded-chain": lambda x, y, c: Sub(
        name="r", x=y, y=Max(name="m", x=x, y=c, low=-1.5, high=40.0, out=COARSE), out=FINE
    ),
    "requantize": lambda x, y, c: Quantize(name="r", x=Dequantize(name="d", x=x), out=FINE),
}

elements = st.builds(
    lambda s, z: ElementType(DType.I8, QuantParams.per_tensor(s, z)),
    st.floats(0.3, 0.9),
    st.sampled_from([-128, -5, 0, 127]),
)


def codes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(256).reshape(16, 16).astype(np.uint8).view("i1")


@pytest.mark.parametrize("case", CASES)
@moderate
@given(left=elements, right=elements, unsigned=st.booleans())
def test_every_code_is_equal(
    case: str, left: ElementType, right: ElementType, unsigned: bool
) -> None:
    x = Input(name="x", tensor=TensorType(DType.I8, (16, 16), left.quant))
    y = Input(name="y", tensor=TensorType(DType.I8, (16, 16), right.quant))
    node = CASES[case](x, y, Constant(name="c", value=STEEP))
    graph = Graph((x, y), (("out", node),))
    feeds = {"x": codes(0), "y": codes(1)}
    results = interpret(lower(graph, unsigned=unsigned), feeds)
    np.testing.assert_array_equal(results, interpret(graph, feeds))


def test_a_chain_of_quantized_operators_is_one_map() -> None:
    x = Input(name="x", tensor=TensorType(DType.I8, (16, 16), FINE_BYTES.quant))
    y = Input(name="y", tensor=TensorType(DType.I8, (16, 16), FINE_BYTES.quant))
    chain = CASES["chain"](x, y, Constant(name="c", value=STEEP))
    lowered = lower(Graph((x, y), (("out", chain),)), unsigned=False)
    assert sum(isinstance(node, Elementwise) for node in lowered.nodes) == 1
