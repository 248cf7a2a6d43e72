"""Operators on sequences and optionals whose items are known are ordinary ones on the items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.ir.ops import External
from quantglow.ort.session import Session
from quantglow.support.arrays import leaves
from tests.unit.importer.onnx.onnx_models import floats

node = helper.make_node
X = floats(6, 4)

SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
OPTIONAL = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [6, 4]))


def constants(**values: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in values.items()]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    opset: int = 18,
    rows: int | str = 6,
    **known: Any,
) -> onnx.ModelProto:
    """A model of x [rows, 4]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])
    graph = helper.make_graph(nodes, "sequences", [x], outputs, constants(**known))
    opsets = [helper.make_opsetid("", opset)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model


def tensor(name: str = "y", element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, None)


def split(**attributes: Any) -> onnx.NodeProto:
    return node("SplitToSequence", ["x", "sizes"], ["s"], **attributes)


CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "at": ([split(), node("SequenceAt", ["s", "i"], ["y"])], {"sizes": [1, 2, 3], "i": 1}),
    "at the end": ([split(), node("SequenceAt", ["s", "i"], ["y"])], {"sizes": 4, "i": -1}),
    "other axis": (
        [split(axis=1), node("SequenceAt", ["s", "i"], ["y"])],
        {"sizes": [1, 3], "i": 0},
    ),
    "single rows": (
        [
            node("SplitToSequence", ["x"], ["s"], keepdims=0),
            node("ConcatFromSequence", ["s"], ["y"], axis=1, new_axis=1),
        ],
        {},
    ),
    "joined": (
        [
            node("Relu", ["x"], ["r"]),
            node("SequenceConstruct", ["x", "r"], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"], axis=-1),
        ],
        {},
    ),
    "inserted": (
        [
            node("SequenceEmpty", [], ["e"]),
            node("Relu", ["x"], ["r"]),
            node("SequenceInsert", ["e", "x"], ["a"]),
            node("SequenceInsert", ["a", "r", "i"], ["b"]),
            node("ConcatFromSequence", ["b"], ["y"], axis=0),
        ],
        {"i": 0},
    ),
    "erased": (
        [
            node("Relu", ["x"], ["r"]),
            node("SequenceConstruct", ["x", "r", "x"], ["s"]),
            node("SequenceErase", ["s"], ["a"]),
            node("SequenceErase", ["a", "i"], ["b"]),
            node("ConcatFromSequence", ["b"], ["y"], axis=0),
        ],
        {"i": 0},
    ),
    "copied": (
        [
            node("SequenceConstruct", ["x", "x"], ["s"]),
            node("Identity", ["s"], ["t"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        {},
    ),
    "optional": (
        [node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["y"])],
        {},
    ),
}
"""Nodes from x to y, and constants."""


@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("case", CASES)
def test_operators_on_known_items_are_compiled(case: str, opset: int) -> None:
    nodes, known = CASES[case]
    model = model_of(nodes, [tensor()], 18 if case in ("copied", "optional") else opset, **known)
    graph = import_model(model)  # without a fallback
    assert not any(isinstance(n, External) for n in graph.nodes)
    (expected,) = Session(model.SerializeToString()).run({"x": X})
    np.testing.assert_array_equal(qg.interpret(graph, {"x": X})[0], expected)


@pytest.mark.parametrize(
    ("nodes", "element", "expected"),
    [
        ([split(), node("SequenceLength", ["s"], ["n"])], TensorProto.INT64, 3),
        (
            [node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["n"])],
            TensorProto.BOOL,
            True,
        ),
        (
            [node("Optional", [], ["o"], type=SEQUENCE), node("OptionalHasElement", ["o"], ["n"])],
            TensorProto.BOOL,
            False,
        ),
    ],
)
def test_facts_of_known_items_are_constants(
    nodes: list[onnx.NodeProto], element: int, expected: int
) -> None:
    model = model_of(
        [*nodes, node("Relu", ["x"], ["y"])], [tensor(), tensor("n", element)], sizes=2
    )
    assert qg.interpret(import_model(model), {"x": X})[1] == expected


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ([node("Relu", ["x"], ["r"]), node("SequenceConstruct", ["x", "r"], ["s"])], SEQUENCE),
        ([node("Relu", ["x"], ["r"]), node("Optional", ["r"], ["s"])], OPTIONAL),
    ],
)
def test_known_items_that_are_read_as_they_are_become_one_value(
    nodes: list[onnx.NodeProto], kind: onnx.TypeProto
) -> None:
    model = model_of(nodes, [helper.make_value_info("s", kind)])
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.CompiledModel)
    results, expected = compiled(X), Session(model.SerializeToString()).run({"x": X})[0]
    pairs = zip(leaves(results), leaves(expected), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_a_sequence_of_free_sizes_is_compiled_for_all() -> None:
    nodes = [split(axis=1), node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    model = model_of(nodes, [tensor()], rows="N", sizes=2)
    compiled, session = qg.compile(model), Session(model.SerializeToString())
    assert isinstance(compiled, qg.CompiledModel)
    for rows in (1, 2, 5):
        x = floats(rows, 4)
        np.testing.assert_array_equal(compiled(x), session.run({"x": x})[0])
