"""A power of e that 1 is added to is never subnormal, because processors are slow on these."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.types import f32
from quantglow.transforms.lowering import lower

LARGE = np.concatenate([np.linspace(88.8, 200, 50), np.linspace(-200, -88.8, 50)])
X = Input(name="x", tensor=f32(100))
FUNCTIONS: list[Node] = [
    ops.Sigmoid(name="y", x=X),
    ops.Softplus(name="y", x=X),
    ops.Elu(name="y", x=X, alpha=0.5),
]


def primitive(function: Node) -> Elementwise:
    ((_, actual),) = lower(Graph((X,), (("y", function),))).outputs
    assert isinstance(actual, Elementwise)
    return actual


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda node: type(node).__name__)
def test_no_step_is_subnormal(function: Node) -> None:
    expression = primitive(function).expression
    with np.errstate(under="raise", over="ignore"):
        expression.evaluate([LARGE.astype(np.float32)])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda node: type(node).__name__)
def test_results_are_those_of_all_powers(function: Node) -> None:
    x = np.concatenate([LARGE[:97], [np.nan, np.inf, -np.inf]]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = function.evaluate(x)
    np.testing.assert_allclose(primitive(function).evaluate(x), expected, rtol=1e-6, atol=1e-37)
