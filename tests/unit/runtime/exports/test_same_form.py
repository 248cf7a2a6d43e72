"""Graphs are compared by their forms, at some sizes or wherever their guards hold."""

from __future__ import annotations

import onnx
import pytest

import quantglow as qg
from quantglow.ir.graph.family import Case
from quantglow.runtime.exports import free_graphs
from quantglow.runtime.exports.equivalence import differences
from quantglow.runtime.exports.free_graphs import FreeGraph
from quantglow.runtime.programs.symbolic_graphs import case_template
from quantglow.runtime.shapes.free_shapes import FreeShapes
from tests.support.free_network import free_model


def free_graph(model: onnx.ModelProto, shape: tuple[int, ...]) -> FreeGraph:
    """The graph for all shapes, made at one."""
    programs = qg.compile(model, num_threads=1).specialisations
    assert isinstance(programs, FreeShapes)
    case = Case.of({"x": shape})
    return FreeGraph.of(programs, case_template(programs.signature, case), case)


def from_nodes(nodes: str) -> onnx.ModelProto:
    """Nodes from ``x`` [T, 4] to ``y``."""
    text = (
        f'<ir_version: 9, opset_import: ["" : 17]> g (float[T,4] x) => (float[A,B] y) {{{nodes}}}'
    )
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


THIRD_ROW = "i=Constant<value_ints=[2]>() y=Gather<axis=0>(x,i)"
LAST_ROW = "i=Constant<value_ints=[-1]>() y=Gather<axis=0>(x,i)"


def test_a_graph_made_at_another_shape_has_the_same_form_for_all_sizes() -> None:
    one, other = (free_graph(free_model(), shape) for shape in ((2, 3, 8, 8), (4, 3, 16, 24)))
    assert differences(one.graph, other.graph) == []
    assert differences(one.graph, other.graph, {"N": 3, "H": 7, "W": 9}) == []


def test_the_last_row_is_counted_from_the_end() -> None:
    """One form for all sizes, and no guard that holds for one."""
    one, other = (free_graph(from_nodes(LAST_ROW), (rows, 4)) for rows in (9, 12))
    assert differences(one.graph, other.graph) == []


def test_the_first_operator_that_differs_is_named() -> None:
    third, last = (free_graph(from_nodes(nodes), (9, 4)).graph for nodes in (THIRD_ROW, LAST_ROW))
    (node,) = differences(third, last)
    assert node.name == "y"


def test_graphs_that_differ_agree_at_some_sizes() -> None:
    third, last = (free_graph(from_nodes(n), (3, 4)).graph for n in (THIRD_ROW, LAST_ROW))
    assert differences(third, last) != []
    assert differences(third, last, {"T": 3}) == []


def test_a_part_that_begins_behind_the_rows_is_not_taken_for_all_of_them() -> None:
    third = free_graph(from_nodes(THIRD_ROW), (9, 4)).graph
    whole = free_graph(from_nodes("y=Identity(x)"), (9, 4)).graph
    assert differences(third, whole, {"T": 1}) != []


def test_models_are_run_at_sizes_of_one_only_where_the_forms_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: object, special: FreeGraph, sizes: dict[str, int], *others: object) -> None:
        assert min(sizes.values()) == 1, f"a model was run at {sizes}"

    monkeypatch.setattr(free_graphs.ShapeComparison, "run", run)
    graph = free_graph(free_model(), (2, 3, 8, 8))
    assert graph.model() == graph.exported


def test_the_node_that_asked_for_a_guard_stays_as_it_is() -> None:
    graph = free_graph(from_nodes("a=Constant<value_int=0>() y=CumSum(x,a)"), (9, 4))
    with pytest.raises(free_graphs.CannotStayFreeError) as refusal:
        _ = graph.pinned
    assert refusal.value.blamed == {"y"}
    written = onnx.load_from_string(graph.model())
    assert [node.op_type for node in written.graph.node] == ["CumSum"]
