"""``export_onnx`` of models in which results decide sizes, float and int8: one model for all sizes.

Where the graph depends on such a size, nodes of the model stay as they are, or it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.api.models.families import Built, open_family
from quantglow.api.models.programs import free_programs
from quantglow.importer.onnx import open_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ort.session import Session
from quantglow.runtime.exports.onnx_models import whole_model
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.arrays import Array
from tests.support.attending_loop import attending_loop, feeds_of
from tests.support.combinations import mark_slow
from tests.support.late_graphs import bound, decide_by_hand, symbolic_graph
from tests.support.late_models import BUILDERS
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.runtime.shapes.test_late_programs import (
    FREE,
    agree,
    choosing_largest,
    pairing,
    with_positives,
)

node = helper.make_node
Feeds = Mapping[str, Array]

STEPS = 0.03
"""Maximum error of an output in int8, as a share of its largest value: a few steps."""


def programs_of(model: onnx.ModelProto) -> FreeShapes:
    """Programs of a model to its end."""
    return free_programs(
        Built(open_family(open_model(model), late_results=LateResults.SYMBOLIC)),
        Compiler.of(num_threads=1),
    )


def exported(programs: FreeShapes, feeds: Feeds, shapes: Any = None) -> Session:
    """The exported model; one of fixed shapes was compiled."""
    if not programs.signature.is_free:
        programs.prepare(Case.of({name: array.shape for name, array in feeds.items()}))
    model = whole_model(programs, shapes)
    onnx.checker.check_model(model, full_check=True)
    return Session(model)


def run(session: Session, feeds: Feeds) -> list[Array]:
    return session.run({name: feeds[name] for name in session.input_names})


@pytest.mark.parametrize("kind", ["detector", "rows", "crops", "decoder"])
def test_one_model_serves_all_late_sizes(kind: str) -> None:
    late = BUILDERS[kind]()
    session = exported(programs_of(late.model), late.sample(3, 0))
    original = Session(late.model.SerializeToString())
    for feeds in late.distinct():
        agree(run(session, feeds), original.run(feeds))


@pytest.mark.parametrize("kind", ["detector", "rows", "crops", "decoder"])
def test_one_int8_model_serves_all_late_sizes(kind: str) -> None:
    late = BUILDERS[kind]()
    graph = symbolic_graph(late.model, late.sample(3, 0))
    decisions = decide_by_hand(graph, [late.sample(7, 0), late.sample(3, 1), late.sample(5, 2)])
    programs = programs_of(late.model)
    make = programs.graph_at
    programs = replace(programs, graph_at=lambda case: decisions.apply(make(case)))
    session = exported(programs, late.sample(3, 0))
    for feeds in (late.sample(size, 60 + size) for size in (7, 1, 2, 4, 1, 7, 3)):
        expected = interpret(bound(decisions.apply(graph), feeds), feeds)
        for one, other in zip(run(session, feeds), expected, strict=True):
            assert one.shape == other.shape
            limit = STEPS * float(np.abs(other).max(initial=0))
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)


@pytest.mark.parametrize("model", [pairing(), FREE], ids=["fixed", "free"])
def test_a_size_of_0_is_served_too(model: onnx.ModelProto) -> None:
    session = exported(programs_of(model), {"x": with_positives(8)})
    for count in (4, 0, 2, 8, 0, 6):
        x = with_positives(count, seed=count)
        agree(run(session, {"x": x}), by_onnxruntime(model, {"x": x}))


def test_shapes_of_inputs_may_be_fixed() -> None:
    programs = programs_of(FREE)
    programs.prepare(Case.of({"x": (6, 4)}))
    model = onnx.ModelProto.FromString(whole_model(programs, {"x": (5, 4)}))
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [5, 4]
    for count in (4, 0, 2):
        x = with_positives(count, 5, 4)
        agree(by_onnxruntime(model, {"x": x}), by_onnxruntime(FREE, {"x": x}))


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], **constants: object
) -> onnx.ModelProto:
    """Nodes from float inputs [.., 4] to ``y``."""
    graph = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n} rows", 4]) for n in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CHOSEN = [
    node("Greater", ["x", "zero"], ["positive"]),
    node("NonZero", ["positive"], ["places"]),
    node("Transpose", ["places"], ["index"], perm=[1, 0]),
    node("GatherND", ["x", "index"], ["values"]),
]
ZERO = np.float32(0)


def test_a_branch_that_a_late_size_decides_stays_as_it_is() -> None:
    """More than four values are doubled, fewer are negated."""
    ends = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [None])]
    more = helper.make_graph([node("Add", ["values", "values"], ["r"])], "more", [], ends)
    less = helper.make_graph([node("Neg", ["values"], ["r"])], "less", [], ends)
    nodes = [
        *CHOSEN,
        node("Size", ["values"], ["count"]),
        node("Greater", ["count", "four"], ["many"]),
        node("If", ["many"], ["y"], then_branch=more, else_branch=less),
    ]
    model = model_of(nodes, ["x"], zero=ZERO, four=np.array(4))
    session = exported(programs_of(model), {"x": with_positives(8)})
    for count in (8, 2, 5, 4, 1, 0, 12):
        x = with_positives(count, 5, seed=count)
        agree(run(session, {"x": x}), by_onnxruntime(model, {"x": x}))


def test_equal_sizes_of_results_are_not_taken_for_one() -> None:
    """Values of both inputs side by side, each repeated as often as the other has values."""
    nodes = [
        *(node("Greater", [name, "zero"], [f"{name} mask"]) for name in "ab"),
        *(node("Compress", [name, f"{name} flat"], [f"{name} values"]) for name in "ab"),
        *(node("Reshape", [f"{name} values", "column"], [f"{name} column"]) for name in "ab"),
        node("Transpose", ["b column"], ["b row"], perm=[1, 0]),
        node("Mul", ["a column", "b row"], ["y"]),
    ]
    flat = [node("Reshape", [f"{name} mask", "flat"], [f"{name} flat"]) for name in "ab"]
    nodes = [*nodes[:2], *flat, *nodes[2:]]
    constants = {"zero": ZERO, "flat": np.array([-1]), "column": np.array([-1, 1])}
    model = model_of(nodes, ["a", "b"], **constants)
    session = exported(programs_of(model), {name: with_positives(8) for name in "ab"})
    for counts in ((3, 5), (4, 4), (1, 6), (0, 3), (7, 1)):
        pairs = zip("ab", counts, strict=True)
        feeds = {name: with_positives(count, 5, seed=count) for name, count in pairs}
        agree(run(session, feeds), by_onnxruntime(model, feeds))


def test_a_size_that_an_operator_has_as_a_number_is_refused() -> None:
    """TopK of the half of the values: no graph has a free number of them."""
    with pytest.raises(qg.ModelError, match=r"places_1.*Remedy: make the model choose a fixed"):
        whole_model(programs_of(choosing_largest()), None)


def test_a_size_that_is_known_at_other_sizes_only() -> None:
    """The rows of strings that are chosen are as many as a late result has."""
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    chosen (float[n,4] x) => (string[k] labels) {
        codes = ArgMax<axis = 1, keepdims = 0> (x)
        texts = ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1], values_strings = ["a", "b"],
            default_string = "?"> (codes)
        zero = Constant<value_ints = [0]> ()
        is_first = Equal (codes, zero)
        places = NonZero (is_first)
        rows = Squeeze (places, zero)
        labels = Gather (texts, rows)
    }""")
    exported_model = onnx.ModelProto.FromString(qg.compile(model, num_threads=1).to_onnx())
    for rows in (1, 5, 9):
        feeds = {"x": np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)}
        (actual,), (expected,) = (by_onnxruntime(m, feeds) for m in (exported_model, model))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", mark_slow([{}, {"stops": True}, {"numbered": True, "behind": True}], [{}])
)
def test_the_body_of_a_loop_is_int8_too(options: dict[str, bool]) -> None:
    model = attending_loop(70, **options)
    sizes = {"stop": 40} if "stops" in options else {}
    samples = [feeds_of(model, seed, **sizes) for seed in range(4)]
    compiled = qg.quantize_and_compile(model, samples, num_threads=1, verify=False, progress=False)
    assert any("in int8, calibrated" in note for note in compiled.report.notes)
    exported_model = onnx.ModelProto.FromString(compiled.to_onnx())
    (loop,) = (step for step in exported_model.graph.node if step.op_type == "Loop")
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert any(step.op_type == "QuantizeLinear" for step in body.node)
    read = {name for step in body.node for name in step.input}
    assert {tensor.name for tensor in body.initializer} <= read, "no float weights beside int8 ones"
    feeds = feeds_of(model, 7, **sizes)
    results = run(Session(exported_model.SerializeToString()), feeds)
    for one, other in zip(results, compiled.run(None, feeds), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        limit = 0.05 * float(np.abs(other).max(initial=0)) if other.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, other, rtol=0, atol=limit)
