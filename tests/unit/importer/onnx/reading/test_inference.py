"""ONNX's shape inference ends no process, whatever types are missing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.reading.proto import infer
from quantglow.support.processes.isolation import call_isolated

ML, FOREIGN = "ai.onnx.ml", "foreign"
OPSETS = [helper.make_opsetid(d, v) for d, v in (("", 17), (ML, 3), (FOREIGN, 1))]
LABELS = {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5]}
VALUES: dict[Any, Any] = {
    AttributeProto.INT: 1,
    AttributeProto.FLOAT: 1.0,
    AttributeProto.STRING: "NOTSET",
    AttributeProto.INTS: [1, 1],
    AttributeProto.FLOATS: [1.0, 1.0],
    AttributeProto.STRINGS: ["a", "b"],
    AttributeProto.TENSOR: numpy_helper.from_array(np.ones(2, np.float32)),
}
"""A value for each kind of required attribute."""


def model_of(nodes: Sequence[onnx.NodeProto], opsets: Any = OPSETS) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    ends = [onnx.ValueInfoProto(name="y")]
    return helper.make_model(helper.make_graph(nodes, "g", [x], ends), opset_imports=opsets)


def node_of(schema: defs.OpSchema, states_all: bool) -> onnx.NodeProto:
    """A node of an operator with the attributes that it needs, or with all."""
    stated = {
        name: VALUES[AttributeProto.AttributeType.Value(attribute.type.name)]
        for name, attribute in schema.attributes.items()
        if (attribute.required or states_all) and attribute.type.name in STATED
    }
    stated |= LABELS if schema.name == "LabelEncoder" else {}
    inputs = [f"i{i}" for i in range(min(schema.max_input, 5))]
    outputs = ["y", *(f"y{i}" for i in range(1, schema.min_output))]
    return helper.make_node(schema.name, inputs, outputs, domain=schema.domain, **stated)


STATED = {AttributeProto.AttributeType.Name(kind) for kind in VALUES}


def infer_every_operator(arrays: object) -> list[Any]:
    """Infer each version of each operator on operands without a type."""
    for schema, states_all in product(defs.get_all_schemas_with_history(), (False, True)):
        node = node_of(schema, states_all)
        sources = [helper.make_node("Source", [], [name], domain=FOREIGN) for name in node.input]
        opsets = [helper.make_opsetid(schema.domain, schema.since_version), OPSETS[2]]
        for strict in (False, True):
            with suppress(*INFERENCE_FAILURES):
                infer(model_of([*sources, node], opsets), strict=strict)
    return []


def test_no_operator_ends_the_process_over_operands_without_a_type() -> None:
    assert call_isolated(f"{__name__}:infer_every_operator", seconds=120) == []


def test_an_element_type_that_onnx_does_not_have_is_an_inference_error() -> None:
    model = model_of([helper.make_node("Abs", ["x"], ["y"])])
    model.graph.input[0].type.tensor_type.elem_type = 2**31 - 1
    with pytest.raises(onnx.shape_inference.InferenceError):
        infer(model, check_type=True)


def test_types_behind_an_unchecked_operator_are_known() -> None:
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    labels = helper.make_node("LabelEncoder", ["i"], ["y"], domain=ML, **LABELS)
    (y,) = infer(model_of([cast, labels]), strict=True).graph.output
    assert y == helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])


@pytest.mark.parametrize("outside", [0, 1])
def test_an_operand_without_a_type_is_no_crash_in_a_branch(outside: int) -> None:
    """Its source is in the branch or around it."""
    source = helper.make_node("Source", [], ["i"], domain=FOREIGN)
    labels = helper.make_node("LabelEncoder", ["i"], ["y"], domain=ML, **LABELS)
    nodes = [source, labels][outside:]
    branch = helper.make_graph(nodes, "branch", [], [onnx.ValueInfoProto(name="y")])
    condition = helper.make_node("Source", [], ["yes"], domain=FOREIGN)
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    model = model_of([*[source][:outside], condition, chosen])
    assert infer(model).graph.output[0].name == "y"
