"""Formulas of the sizes that another runtime's results have at free sizes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from quantglow.importer.onnx import open_model
from quantglow.importer.onnx.resolvers.external import states
from quantglow.importer.onnx.resolvers.result_types import ResultType, Sizing, free_types
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import Size, symbols, to_expression
from quantglow.ir.types import DType
from tests.support.deformable import deformable

VALUES = st.integers(2, 300)
HINTS = {"H": 12, "W": 9}

Shape = Callable[[int, int], tuple[int, ...]]


def fitted(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape at some sizes by the formulas that are found for it at the hints; None where there
    are none."""
    built, _ = symbols(HINTS)
    operands = [size for size in built.values() if isinstance(size, Size)]
    height, width = map(to_expression, operands)

    def types_at(inputs: Sizing) -> dict[str, ResultType]:
        return {"y": ResultType(DType.F32, shape(inputs[height], inputs[width]))}

    actual = free_types(operands, types_at).get("y")
    dims = None if actual is None else [size for size in actual.dims if size is not None]
    return None if dims is None else tuple(to_expression(n).at(sizes) for n in dims)


SHAPES: list[Shape] = [
    lambda h, w: (3, 7),
    lambda h, w: (h, w + 2),
    lambda h, w: ((h + 1) // 2, (w - 3) // 3 + 1),
    lambda h, w: (2 * h, (3 * w + 5) // 4),
    lambda h, w: (h * w, 5 * h * w),
    lambda h, w: (h + w, h // 2 + w + 1),
    lambda h, w: ((h + 1) // 2 * 4,),
]


@given(st.sampled_from(SHAPES), VALUES, VALUES)
def test_a_formula_that_is_found_holds(shape: Shape, height: int, width: int) -> None:
    assert fitted(shape, {"H": height, "W": width}) == shape(height, width)


@pytest.mark.parametrize(
    "shape",
    [lambda h, w: (max(h, w),), lambda h, w: (h * h,), lambda h, w: (h % 5 + 1,)],
    ids=["maximum", "square", "remainder"],
)
def test_a_size_without_a_formula_has_none(shape: Shape) -> None:
    assert fitted(shape, HINTS) is None


def test_results_that_are_not_inferred_have_no_types() -> None:
    built, _ = symbols(HINTS)
    operands = [size for size in built.values() if isinstance(size, Size)]
    assert free_types(operands, lambda sizes: {}) == {}


def symbolic(model: onnx.ModelProto, shape: tuple[int, ...]) -> tuple[Graph, Guards]:
    """The graph of a model whose free dimensions but the batch are symbols."""
    built, guards = symbols(HINTS)
    free = (shape[0], shape[1], built["H"], built["W"])
    return open_model(model).at(Case.of({"x": free})), guards


def test_a_node_of_another_runtime_is_in_the_graph_of_all_shapes() -> None:
    graph, _ = symbolic(deformable(), (2, 3, 0, 0))
    (node,) = (node for node in graph.nodes if isinstance(node, External))
    sizes = [str(to_expression(size)) for size in node.type.shape]
    assert sizes == ["2", "8", "floor(H+1,2)", "floor(W+1,2)"]
    model = onnx.ModelProto.FromString(node.model)
    assert all(
        states(info, arg.type) for info, arg in zip(model.graph.input, node.args, strict=True)
    )
    assert not any(d.dim_value for d in list(model.graph.output[0].type.tensor_type.shape.dim)[2:])


def columns() -> onnx.ModelProto:
    """Col2Im to the image that x has: a node with sizes among its operands."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=2),
        helper.make_node("Reshape", ["x", "flat"], ["columns"]),
        helper.make_node("Col2Im", ["columns", "size", "one"], ["y"]),
    ]
    known = {"flat": [0, 0, -1], "one": [1, 1]}
    graph = helper.make_graph(
        nodes,
        "columns",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor(k, TensorProto.INT64, [len(v)], v) for k, v in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def test_sizes_are_operands_of_a_node_of_another_runtime() -> None:
    graph, _ = symbolic(columns(), (1, 4, 0, 0))
    (node,) = (node for node in graph.nodes if isinstance(node, External))
    assert [str(to_expression(size)) for size in node.type.shape] == ["1", "4", "H", "W"]
    assert [arg.type.dtype for arg in node.args] == [DType.F32, DType.I64]
