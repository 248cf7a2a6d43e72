"""Reductions of axes without elements: the interpreter and compiled programs agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops.pooling import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType

STEPS = QuantParams.per_tensor(0.1, 3)
FLOATS, INTEGERS = ElementType(DType.F32), ElementType(DType.I8, STEPS)
CASES = [
    *((FLOATS, operator) for operator in (ReduceMax, ReduceMin, ReduceMean, ReduceSum)),
    *((INTEGERS, operator) for operator in (ReduceMax, ReduceMin, ReduceMean)),
]


@pytest.mark.parametrize(("element", "operator"), CASES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)])
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_reductions_of_nothing(
    shape: tuple[int, ...], axis: int, keepdims: bool, element: ElementType, operator: Any
) -> None:
    x = Input(name="x", tensor=TensorType(element.dtype, shape, element.quant))
    is_mean = operator is ReduceMean and element is INTEGERS
    options: dict[str, Any] = {"out": INTEGERS} if is_mean else {}
    y = operator(name="y", x=x, axes=(axis,), keepdims=keepdims, **options)
    graph, feeds = Graph((x,), (("y", y),)), {"x": np.zeros(shape, element.dtype.numpy)}
    (expected,) = qg.interpret(graph, feeds)
    for threads in (1, 2, 3):
        (result,) = qg.compile(graph, num_threads=threads).run(None, feeds)
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype
    if operator in (ReduceMax, ReduceMin) and expected.size:
        low, high = element.dtype.ends
        assert (expected == (low if operator is ReduceMax else high)).all()
