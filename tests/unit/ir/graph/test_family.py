"""The graphs of one model."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.family import Case, Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.graph.signature import Port, Signature
from quantglow.ir.ops import Gemm
from quantglow.ir.types import DType, TensorType
from quantglow.support.errors import UndecidedError


def product(case: Case) -> Graph:
    """Rows times [64, 32] weights, which are made anew."""
    shape = dict(case.shapes)["x"]
    x = Input(name="x", tensor=TensorType(DType.F32, shape))
    w = Constant(name="w", value=np.ones((64, 32), np.float32))
    return Graph((x,), (("y", Gemm(name="y", x=x, w=w)),), "product")


def weights_of(graph: Graph) -> np.ndarray:
    (actual,) = (node.value for node in graph.nodes if isinstance(node, Constant))
    return actual


def test_graphs_of_all_shapes_share_their_weights() -> None:
    signature = Signature((Port("x", DType.F32, ("N", 64)),), (Port("y", DType.F32, ("N", 32)),))
    family = Family(signature, "product", product)
    graphs = [family.at({"x": (rows, 64)}) for rows in (1, 2, 3)]
    assert len({id(graph) for graph in graphs}) == 3
    assert len({id(weights_of(graph)) for graph in graphs}) == 1


def test_a_graph_that_stays_undecided_is_an_error() -> None:
    asked: list[Case] = []

    def undecided(case: Case) -> Graph:
        asked.append(case)
        if len(asked) > 9:
            pytest.fail("asked without end")
        raise UndecidedError(["node 'a'"], ("x",))

    signature = Signature((Port("x", DType.I64, (2,)),), (Port("y", DType.F32, (2, 32)),))
    with pytest.raises(UndecidedError, match="node 'a'"):
        Family(signature, "product", undecided).fitting({"x": np.array([3, 4])})
    assert [case.value_map for case in asked] == [{}, {"x": (3, 4)}]


def test_the_family_of_a_graph_has_that_graph() -> None:
    graph = product(Case.of({"x": (2, 64)}))
    assert Family.of(graph).at({"x": (2, 64)}) is graph
