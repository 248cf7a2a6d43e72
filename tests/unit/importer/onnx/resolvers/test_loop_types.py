"""Types of the results of Loops whose number of trips is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.importer.onnx import open_model
from quantglow.importer.onnx.resolvers.loop_types import looping_types
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.size import Size, symbols
from quantglow.ir.types import DType
from quantglow.runtime.programs.symbolic_graphs import free_case
from quantglow.support.arrays import Array
from quantglow.transforms.partition import late_sizes
from tests.support.computed_loops import (
    CONDITION,
    FLOAT,
    INTEGER,
    WIDTH,
    body_of,
    growing_loop,
    model_of,
    node,
    value,
)
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

Dims = tuple[int | None, ...]


def types_of(
    body: onnx.GraphProto,
    carried: Mapping[str, tuple[int, Sequence[int]]],
    results: Sequence[str],
    captured: Mapping[str, Sequence[int | None]] | None = None,
    constants: Mapping[str, Array] | None = None,
) -> dict[str, Dims]:
    """The dimensions of the results of a Loop with a computed number of trips."""
    loop = node("Loop", ["trips", "", *carried], list(results), body=body)
    graph = helper.make_graph(
        [loop],
        "alone",
        [value("trips", INTEGER, [])]
        + [value(name, kind, dims) for name, (kind, dims) in carried.items()]
        + [value(name, FLOAT, dims) for name, dims in (captured or {}).items()],
        [],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    types = looping_types(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return {
        name: tuple(
            d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim
        )
        for name, kind in types.items()
    }


STATE = {"s": (FLOAT, [2, 4])}


def test_a_carried_value_of_one_size_keeps_it() -> None:
    body = body_of([node("Tanh", ["state"], ["next"])], {"state": FLOAT}, {"next": FLOAT})
    assert types_of(body, STATE, ["last"]) == {"last": (2, 4)}


def test_the_axis_that_grows_has_any_size() -> None:
    body = body_of(
        [node("Concat", ["state", "row"], ["next"], axis=0)], {"state": FLOAT}, {"next": FLOAT}
    )
    assert types_of(body, STATE, ["last"], {"row": [1, 4]}) == {"last": (None, 4)}


def test_a_size_that_depends_on_one_that_grows_has_any_value() -> None:
    """The second value has as many columns as the first one rows, from the second trip on."""
    nodes = [
        node("Concat", ["one", "row"], ["longer"], axis=0),
        node("Transpose", ["one"], ["turned"], perm=[1, 0]),
    ]
    body = body_of(nodes, {"one": FLOAT, "two": FLOAT}, {"longer": FLOAT, "turned": FLOAT})
    carried = {"a": (FLOAT, [2, 4]), "b": (FLOAT, [4, 2])}
    types = types_of(body, carried, ["c", "d"], {"row": [1, 4]})
    assert types == {"c": (None, 4), "d": (4, None)}


def test_stacked_values_have_an_axis_of_trips() -> None:
    body = body_of(
        [node("Tanh", ["state"], ["next"]), node("MatMul", ["next", "w"], ["out"])],
        {"state": FLOAT},
        {"next": FLOAT, "out": FLOAT},
    )
    types = types_of(body, STATE, ["last", "rows"], {"w": [4, 7]})
    assert types == {"last": (2, 4), "rows": (None, 2, 7)}


def test_results_without_a_name_are_left_out() -> None:
    body = body_of(
        [node("Tanh", ["state"], ["next"]), node("Relu", ["next"], ["out"])],
        {"state": FLOAT},
        {"next": FLOAT, "out": FLOAT},
    )
    assert types_of(body, STATE, ["", "rows"]) == {"rows": (None, 2, 4)}


def test_shape_arithmetic_in_the_body_is_computed() -> None:
    nodes = [
        node("Shape", ["table"], ["shape"]),
        node("Gather", ["shape", "last"], ["columns"]),
        node("Concat", ["minus", "columns"], ["target"], axis=0),
        node("Reshape", ["state", "target"], ["next"]),
    ]
    constants = {"last": np.array([1]), "minus": np.array([-1])}
    body = body_of(nodes, {"state": FLOAT}, {"next": FLOAT}, constants=constants)
    assert types_of(body, STATE, ["last value"], {"table": [9, 4]}) == {"last value": (2, 4)}


@pytest.mark.parametrize("large", [False, True])
def test_weights_inside_of_a_body_have_types(large: bool) -> None:
    rows = 4096 if large else 4
    weights = np.zeros((rows, 4), np.float32)
    nodes = [
        node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weights)),
        node("MatMul", ["w", "turn"], ["v"]),
        node("Transpose", ["state"], ["turned"], perm=[1, 0]),
        node("MatMul", ["v", "turned"], ["out"]),
        node("Identity", ["state"], ["next"]),
    ]
    constants = {"turn": np.zeros((4, 4), np.float32)}
    body = body_of(nodes, {"state": FLOAT}, {"next": FLOAT, "out": FLOAT}, constants=constants)
    assert types_of(body, STATE, ["last", "rows"]) == {"last": (2, 4), "rows": (None, rows, 2)}


def test_a_loop_in_a_body_has_types_of_its_own() -> None:
    inner = body_of(
        [node("Concat", ["part", "row"], ["longer"], axis=0), node("Neg", ["row"], ["negated"])],
        {"part": FLOAT},
        {"longer": FLOAT, "negated": FLOAT},
        prefix="inner ",
    )
    nodes = [
        node("Loop", ["trip", "", "state"], ["grown", "stack"], body=inner),
        node("ReduceSum", ["grown", "first"], ["sum"]),
        node("Add", ["state", "sum"], ["next"]),
    ]
    body = body_of(
        nodes, {"state": FLOAT}, {"next": FLOAT, "stack": FLOAT}, constants={"first": np.array([0])}
    )
    types = types_of(body, STATE, ["last", "stacks"], {"row": [1, 4]})
    assert types == {"last": (2, 4), "stacks": (None, None, 1, 4)}


@pytest.mark.parametrize("looped", [False, True])
def test_both_branches_of_a_condition_count(looped: bool) -> None:
    inner = body_of(
        [node("Concat", ["part", "row"], ["longer"], axis=0)],
        {"part": FLOAT},
        {"longer": FLOAT},
        prefix="inner ",
    )
    grow = (
        node("Loop", ["trip", "", "state"], ["then"], body=inner)
        if looped
        else node("Concat", ["state", "row"], ["then"], axis=0)
    )
    branches = {
        "then_branch": helper.make_graph([grow], "then", [], [value("then", FLOAT, None)]),
        "else_branch": helper.make_graph(
            [node("Neg", ["state"], ["else"])], "else", [], [value("else", FLOAT, None)]
        ),
    }
    nodes = [
        node("Equal", ["trip", "two"], ["is two"]),
        node("If", ["is two"], ["next"], **branches),
    ]
    body = body_of(nodes, {"state": FLOAT}, {"next": FLOAT}, constants={"two": np.array(2)})
    assert types_of(body, STATE, ["last"], {"row": [1, 4]}) == {"last": (None, 4)}


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ([node("Unsqueeze", ["state", "first"], ["next"])], FLOAT),
        ([node("Cast", ["state"], ["next"], to=TensorProto.DOUBLE)], TensorProto.DOUBLE),
    ],
    ids=["rank", "element type"],
)
def test_a_value_of_another_rank_or_element_type_has_no_type(
    nodes: list[onnx.NodeProto], kind: int
) -> None:
    body = body_of(nodes, {"state": FLOAT}, {"next": kind}, constants={"first": np.array([0])})
    assert types_of(body, STATE, ["last"]) == {}


def test_a_body_that_ONNX_does_not_infer_has_the_types_that_it_states() -> None:
    body = body_of(
        [node("Other", ["state"], ["next"], domain="own")], {"state": FLOAT}, {"next": FLOAT}
    )
    assert types_of(body, STATE, ["last"]) == {}
    body.output[1].CopyFrom(value("next", FLOAT, [2, 4]))
    assert types_of(body, STATE, ["last"]) == {"last": (2, 4)}


# -- in graphs


def external_shapes(graph: Any) -> dict[str, tuple[Any, ...]]:
    """The shapes of the results of External nodes, None for late sizes."""
    late = set(late_sizes(graph))
    return {
        n.name: tuple(
            None if isinstance(size, Size) and size.symbols <= late else size
            for size in n.type.shape
        )
        for n in graph.nodes
        if isinstance(n, External)
    }


@pytest.mark.parametrize("conditional", [False, True])
def test_the_graph_goes_on_behind_a_loop(conditional: bool) -> None:
    source = open_model(growing_loop(conditional=conditional))
    graph = source.at(
        Case.of({"x": (3, WIDTH), "s": (1, WIDTH), "trips": ()}), LateResults.SYMBOLIC
    )
    assert external_shapes(graph) == {
        "last": (1, WIDTH),
        "all": (None, WIDTH),
        "states": (None, 1, WIDTH),
    }
    assert [name for name, _ in graph.outputs] == ["last", "all", "y", "z"]


def test_free_sizes_that_a_loop_keeps_stay_formulas() -> None:
    trip = [
        node("Tanh", ["state"], ["next"]),
        node("Concat", ["next", "next"], ["twice"], axis=0),
    ]
    body = body_of(trip, {"state": FLOAT}, {"next": FLOAT, "twice": FLOAT})
    nodes = [node("Loop", ["trips", "", "x"], ["last", "rows"], body=body)]
    inputs = {"x": (FLOAT, ["rows", "columns"]), "trips": (INTEGER, [])}
    source = open_model(model_of(nodes, inputs, {"last": FLOAT, "rows": FLOAT}))
    sizes, guards = symbols({"rows": 5, "columns": 3})
    assert guards is not None
    template = (("x", ("rows", "columns")), ("trips", ()))
    graph = source.at(free_case(template, sizes, None), LateResults.SYMBOLIC)
    shapes = {name: end.type.shape for name, end in graph.outputs}
    assert str(shapes["rows"][1:]) == "({2*rows}, {columns})"
    assert str(shapes["last"]) == "({rows}, {columns})"


def test_a_loop_whose_ranks_change_gives_an_opaque_value(tmp_path: Path) -> None:
    body = body_of(
        [node("Unsqueeze", ["state", "first"], ["next"])],
        {"state": FLOAT},
        {"next": FLOAT},
        constants={"first": np.array([0])},
    )
    nodes = [
        node("Tanh", ["x"], ["start"]),
        node("Loop", ["trips", "", "start"], ["last"], body=body),
        node("Exp", ["last"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [2]), "trips": (INTEGER, [])}
    model = model_of(nodes, inputs, {"y": FLOAT})
    graph = open_model(model).at(Case.of({"x": (2,), "trips": ()}), LateResults.SYMBOLIC)
    opaque = {node.name for node in graph.nodes if node.type.dtype is DType.OPAQUE}
    assert opaque == {"last", "y"}
    samples = [{"x": np.float32([1, -2]), "trips": np.array(trips)} for trips in (0, 1, 3)]
    compiled = qg.compile(model, num_threads=1)
    compiled.save(tmp_path / "m.qgm")
    int8 = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    for each in (compiled, qg.load(tmp_path / "m.qgm", num_threads=1), int8):
        for feeds in samples:
            (actual,), (expected,) = each.run(None, feeds), by_onnxruntime(model, feeds)
            np.testing.assert_allclose(actual, expected, rtol=0.05, strict=True)


def test_unread_results_have_no_symbols() -> None:
    model = growing_loop(behind=False)
    del model.graph.output[1]
    graph = open_model(model).at(
        Case.of({"x": (3, WIDTH), "s": (1, WIDTH), "trips": ()}), LateResults.SYMBOLIC
    )
    assert not graph.symbols
    assert external_shapes(graph) == {"last": (1, WIDTH)}


def test_a_condition_that_is_given_is_an_operand() -> None:
    body = body_of(
        [
            node("Concat", ["state", "state"], ["next"], axis=0),
            node("Shape", ["next"], ["shape"]),
            node("Gather", ["shape", "zero"], ["rows"]),
            node("Less", ["rows", "many"], ["more"]),
        ],
        {"state": FLOAT},
        {"next": FLOAT},
        holds="more",
        constants={"zero": np.array(0), "many": np.array(100)},
    )
    nodes = [node("Loop", ["", "go", "x"], ["last"], body=body)]
    inputs = {"x": (FLOAT, [2, 3]), "go": (CONDITION, [])}
    source = open_model(model_of(nodes, inputs, {"last": FLOAT}))
    graph = source.at(Case.of({"x": (2, 3), "go": ()}), LateResults.SYMBOLIC)
    assert external_shapes(graph) == {"last": (None, 3)}


def nested(depth: int, rank: int) -> onnx.GraphProto:
    """A body in which each trip makes another axis grow, around one that begins anew."""
    state, longer, after = f"state{depth}", f"longer{depth}", f"next{depth}"
    nodes = [
        node("Concat", [state, state], [longer], axis=0),
        node("Transpose", [longer], [after], perm=[*range(1, rank), 0]),
    ]
    if depth:
        body = nested(depth - 1, rank)
        nodes.insert(0, node("Loop", ["trips", "", "fresh"], [f"inner{depth}"], body=body))
    return body_of(nodes, {state: FLOAT}, {after: FLOAT})


def test_inferring_loops_inside_of_each_other_ends() -> None:
    sizes = [2] * 8
    state, captured = {"s": (FLOAT, sizes)}, {"fresh": sizes}
    assert types_of(nested(1, 8), state, ["last"], captured) == {"last": (None,) * 8}
    with pytest.raises(RuntimeError, match="more than 512 inferences"):
        types_of(nested(6, 8), state, ["last"], captured)
