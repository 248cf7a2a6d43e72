"""A product of nothing is zero in the integers of its result."""

from __future__ import annotations

import numpy as np

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Input, MatMul
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.lowering import lower
from tests.matrix.harness import assert_agree

INT8 = QuantParams((0.5,), (3,))


def product(quant: QuantParams | None, out: ElementType | None) -> Graph:
    dtype = DType.F32 if quant is None else DType.I8
    x = Input(name="x", tensor=TensorType(dtype, (2, 3, 0), quant))
    y = Input(name="y", tensor=TensorType(dtype, (2, 0, 5), quant))
    node = MatMul(name="z", x=x, y=y, out=out)
    return Graph(inputs=(x, y), outputs=(("z", node),))


def test_integers_and_floats_of_nothing() -> None:
    for graph in (
        product(INT8, ElementType(DType.I8, INT8)),
        product(INT8, None),
        product(None, None),
    ):
        feeds = {x.name: np.zeros(x.type.shape, x.type.dtype.numpy) for x in graph.inputs}
        assert "matmul" not in str(lower(graph)).lower()
        assert_agree(graph, feeds, "native")
        assert interpret(graph, feeds)[0].shape == (2, 3, 5)
