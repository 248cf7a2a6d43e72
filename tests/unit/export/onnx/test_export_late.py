"""Export of graphs in which results decide sizes: these are read from the shapes of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.export.onnx.model import export_onnx
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Expand
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.size import symbols
from quantglow.ir.types import DType
from quantglow.ort.session import Session
from quantglow.support.arrays import Array
from quantglow.transforms.size_sources import in_order_of_sizes, late_sizes
from tests.support.late_graphs import bound, decide_by_hand, symbolic_graph
from tests.support.late_models import BUILDERS, LateModel
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.runtime.shapes.test_late_programs import FREE, agree, choosing_largest, pairing
from tests.unit.runtime.shapes.test_late_programs import with_positives as positives

node = helper.make_node

TO_THE_END = ("detector", "rows", "crops", "decoder")
"""Kinds of late models without strings, and without a loop whose state grows."""

STEPS = 0.03
"""Maximum error of an output in int8, as a share of its largest value: a few steps."""


@cache
def late_model(kind: str) -> LateModel:
    return BUILDERS[kind]()


@cache
def graph_of(kind: str) -> Graph:
    return symbolic_graph(late_model(kind).model, late_model(kind).sample(3, 0))


def run(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of the exported graph in onnxruntime."""
    model = export_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    return by_onnxruntime(model, dict(feeds))


@pytest.mark.parametrize("kind", TO_THE_END)
def test_an_exported_graph_gives_what_the_model_gives_at_every_late_size(kind: str) -> None:
    late = late_model(kind)
    original = Session(late.model.SerializeToString())
    session = Session(export_onnx(graph_of(kind)).SerializeToString())
    for feeds in late.distinct():
        agree(session.run(feeds), original.run(feeds))


@pytest.mark.parametrize("kind", TO_THE_END)
def test_an_exported_int8_graph_gives_what_the_interpreter_gives(kind: str) -> None:
    late = late_model(kind)
    decisions = decide_by_hand(graph_of(kind), [late.sample(7, 0), late.sample(3, 1)])
    graph = decisions.apply(graph_of(kind))
    behind = bound(graph, late.sample(4, 9))
    products = [n for n in behind.nodes if n.op in ("Conv", "Gemm", "MatMul")]
    assert products and all(n.operands[0].type.dtype is DType.I8 for n in products)
    session = Session(export_onnx(graph).SerializeToString())
    for feeds in (late.sample(size, 60 + size) for size in (7, 1, 2, 4, 1, 7, 3)):
        expected = interpret(bound(graph, feeds), feeds)
        for one, other in zip(session.run(feeds), expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            limit = STEPS * float(np.abs(other).max(initial=0))
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)


@pytest.mark.parametrize("model", [pairing(), FREE], ids=["fixed", "free"])
def test_sizes_of_inputs_and_of_results_are_read_alike(model: onnx.ModelProto) -> None:
    session = Session(export_onnx(symbolic_graph(model, {"x": positives(8)})).SerializeToString())
    shapes = [(6, 4)] if model is not FREE else [(6, 4), (9, 5), (2, 8)]
    for rows, columns in shapes:
        for count in (4, 2, 8, 0, 6):
            x = positives(count, rows, columns, seed=count)
            agree(session.run({"x": x}), by_onnxruntime(model, {"x": x}))


def test_a_size_that_decides_the_graph_is_fixed_in_it() -> None:
    """The largest half of eight values: a graph for four of them."""
    model = choosing_largest()
    graph = symbolic_graph(model, {"x": positives(8)})
    x = positives(8, 9, 5)
    agree(run(graph, {"x": x}), by_onnxruntime(model, {"x": x}))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Mapping[str, int],
    **constants: object,
) -> onnx.ModelProto:
    """Nodes from float inputs [.., 4] to outputs of any shape."""
    graph = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n} rows", 4]) for n in inputs],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_several_results_decide_sizes_of_their_own() -> None:
    nodes = [
        node("NonZero", ["x"], ["a"]),
        node("NonZero", ["y"], ["b"]),
        node("Concat", ["a", "b"], ["both"], axis=1),
    ]
    model = model_of(nodes, ["x", "y"], {"both": TensorProto.INT64})
    graph = symbolic_graph(model, {"x": positives(8), "y": positives(5)})
    assert len(late_sizes(graph)) == 2
    feeds = {"x": positives(3, 5), "y": positives(9, 7)}
    np.testing.assert_array_equal(run(graph, feeds)[0], by_onnxruntime(model, feeds)[0])


def counted_matrices() -> onnx.ModelProto:
    """Determinants of as many matrices of ones as elements are positive: what computes them reads
    the number of places, but none of them, and is the first output."""
    nodes = [
        node("NonZero", ["x"], ["at"]),
        node("Shape", ["at"], ["count"], start=1),
        node("Concat", ["count", "matrix"], ["size"], axis=0),
        node("Expand", ["one", "size"], ["ones"]),
        node("Det", ["ones"], ["det"]),
    ]
    ends = {"det": TensorProto.FLOAT, "at": TensorProto.INT64}
    return model_of(nodes, ["x"], ends, matrix=[4, 4], one=np.float32([1]))


def test_a_node_comes_behind_those_that_decide_its_sizes() -> None:
    """Also where it reads no value of them; an operator that only passes a size on decides none."""
    model = counted_matrices()
    graph = symbolic_graph(model, {"x": positives(8)})
    (late,) = late_sizes(graph).values()
    assert late.node.name == "at"
    assert [n.name for n in graph.nodes if isinstance(n, External)] == ["det", "at"]
    ordered = in_order_of_sizes(graph)
    reading = [n for n in ordered[: ordered.index(late.node)] if late.symbol in n.symbols]
    assert reading == []
    feeds = {"x": positives(6, 5)}
    agree(run(graph, feeds), by_onnxruntime(model, feeds))


def test_a_size_of_a_value_that_is_not_in_the_graph_is_refused() -> None:
    sizes, _ = symbols({"rows": 8})
    one = Constant(name="one", value=np.ones(1, np.float32))
    graph = Graph((), (("y", Expand(name="y", x=one, shape=(sizes["rows"],))),))
    with pytest.raises(qg.ModelError, match=r"size rows is that of a value .* not in the graph"):
        export_onnx(graph)
