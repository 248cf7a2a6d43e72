"""The reference interpreter on values that are not finite."""

from __future__ import annotations

import numpy as np

from quantglow.interpreter import interpret
from quantglow.ir.ops import Gemm
from tests.support.builder import Builder


def test_infinities_are_values_without_a_warning() -> None:
    b = Builder()
    x = b.input(1, 2)
    graph = b.graph(b.make(Gemm, x=x, w=b.constant([[0.0], [1.0]]), b=b.constant([0.0])))
    [actual] = interpret(graph, {x.name: np.array([[-np.inf, 1.0]], np.float32)})
    assert np.isnan(actual)
