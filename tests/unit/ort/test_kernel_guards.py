"""The table of guards, and which operators a model has, read without onnx."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.export.onnx.compatibility import NAMED_RESULTS
from quantglow.importer.onnx.reading.proto import every_node
from quantglow.ort.kernel_guards import (
    INNER_MESSAGES,
    KERNEL_GUARDS,
    OP_TYPE,
    VERSION,
    has_operator,
    operator_types,
)
from quantglow.ort.session import Session, open_session
from quantglow.support.arrays import Array
from quantglow.support.errors import FallbackError
from quantglow.support.processes.isolation import ChildDied, IsolationError, call_isolated
from tests.unit.ort.test_shape_guards import CASES, model_of, wrong_ranks

EMPTY = {"LSTM-14": (4, 0, 3), "GRU-14": (4, 0, 3)}
"""Shapes of operands whose ranks the kernel checks."""

NESTED = """
<ir_version: 9, opset_import: ["": 17, "own": 1]>
g (bool c, float[2] x) => (float[2] y) {
    a = own.twice (x)
    y = If (c) <
        then_branch = t () => (float[2] p) { p = Neg (a) },
        else_branch = e () => (float[2] q) {
            b = Identity (c)
            q = If (b) <
                then_branch = u () => (float[2] r) { r = Sinh (a) },
                else_branch = v () => (float[2] s) { s = Cosh (a) }
            >
        }
    >
}
<domain: "own", opset_import: ["": 17]>
twice (x) => (y) { y = Add (x, x) }
"""


def test_types_of_nested_nodes_and_of_functions_are_read() -> None:
    model = onnx.parser.parse_model(NESTED)
    expected = {"twice", "If", "Neg", "Identity", "Sinh", "Cosh", "Add"}
    assert {node.op_type for node in every_node(model)} == expected
    assert operator_types(model.SerializeToString()) == expected


def test_the_numbers_of_fields_are_those_of_onnx() -> None:
    for kind, inner in INNER_MESSAGES.items():
        fields = getattr(onnx, kind).DESCRIPTOR.fields_by_number
        assert {n: fields[n].message_type.name for n in inner} == inner
    assert onnx.NodeProto.OP_TYPE_FIELD_NUMBER == OP_TYPE


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_may_have_every_operator(content: bytes) -> None:
    assert operator_types(content) is not None or has_operator(content, {"Loop"})


def test_a_model_cut_short_may_have_every_operator() -> None:
    content = onnx.parser.parse_model(NESTED).SerializeToString()
    assert operator_types(content[:-3]) is None and has_operator(content[:-3], {"Loop"})


WITH_BODIES = {
    schema.name
    for schema in onnx.defs.get_all_schemas()
    if any(attribute.type.name == "GRAPH" for attribute in schema.attributes.values())
}
"""Operators that have subgraphs."""

FLEX_ATTENTION = """
<ir_version: 11, opset_import: ["": 24, "ai.onnx.preview": 1]>
g (float[1,1,2,2] x) => (float[1,1,2,2] y) {
    y = ai.onnx.preview.FlexAttention <
        score_mod = m (float[1,1,2,2] s) => (float[1,1,2,2] t) { t = Neg (s) }
    > (x, x, x)
}
"""


def test_results_get_names_where_the_table_says_so() -> None:
    named = {op_type for op_type, guard in KERNEL_GUARDS.items() if guard.names_results}
    assert named >= NAMED_RESULTS and named - NAMED_RESULTS <= WITH_BODIES


def test_onnxruntime_refuses_operators_with_bodies_that_have_no_guard() -> None:
    """One that begins to run them needs a look at its kernel."""
    assert WITH_BODIES - KERNEL_GUARDS.keys() == {"FlexAttention"}
    with pytest.raises(FallbackError, match="not a registered function"):
        open_session(onnx.parser.parse_model(FLEX_ATTENTION).SerializeToString())


def run_unguarded(arrays: list[Array], *, case: str) -> list[Array]:
    """The outputs of onnxruntime alone."""
    feeds = dict(zip(CASES[case][3], arrays, strict=True))
    return list(Session(model_of(case).SerializeToString()).run(feeds))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_kernels_of_the_table_need_their_guards(case: str) -> None:
    """A newer onnxruntime may raise where the one of the table ends the process."""
    arrays = [np.zeros(EMPTY[case], np.float32)] if case in EMPTY else wrong_ranks(case)
    is_of_table = onnxruntime.__version__.startswith(f"{VERSION}.")
    with pytest.raises(ChildDied if is_of_table else IsolationError):
        call_isolated(f"{__name__}:run_unguarded", arrays, {"case": case}, seconds=60)
