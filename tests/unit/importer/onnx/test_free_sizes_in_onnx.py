"""Sizes that are expressions of free dimensions, computed by the nodes of an exported model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.export.onnx.model import export_onnx
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Expand
from quantglow.ir.symbolic.expression import Expression, number, symbol
from quantglow.ir.symbolic.size import size, symbols
from quantglow.ir.types import f32
from tests.support.effort import moderate
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

H, W = symbol("h"), symbol("w")
POSITIVE = st.sampled_from([H, W, number(2), number(3), H + W])


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """Sums, products, quotients of numbers of both signs, and maxima."""
    actual = draw(st.sampled_from([H, W, number(3), -W]))
    for _ in range(draw(st.integers(1, 4))):
        other = draw(st.sampled_from([H, W, number(5), number(-2)]))
        actual = draw(
            st.sampled_from([actual + other, actual - other, actual * other, actual.maximum(other)])
        )
        if draw(st.booleans()):
            actual = actual // draw(POSITIVE)
    return actual


@moderate
@given(expressions(), st.integers(1, 40), st.integers(1, 40))
def test_every_expression_is_computed(expression: Expression, h: int, w: int) -> None:
    sizes, guards = symbols({"h": 8, "w": 9})
    x = Input(name="x", tensor=f32(sizes["h"], sizes["w"]))
    # A size is at least 1, so the exporter is given a power of it that is.
    expected = (expression * expression + number(1)) // number(50) + number(1)
    one = Constant(name="one", value=np.ones(1, np.float32))
    rows = Expand(name="y", x=one, shape=(size(expected.maximum(-expected), guards),))
    graph = Graph((x,), (("y", rows),))
    count = expected.at({"h": h, "w": w})
    if count > 10**6:
        return
    model = export_onnx(graph)
    (actual,) = by_onnxruntime(model, {"x": np.zeros((h, w), np.float32)})
    assert actual.shape == (count,)
