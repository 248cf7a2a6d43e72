"""Loops that append rows to a value for many trips run as loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.operators.controlflow.loops import MOST_UNROLLED
from quantglow.interpreter import interpret
from quantglow.ir.ops import Loop
from quantglow.ir.types import DType
from tests.support.combinations import mark_slow
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

node, value = helper.make_node, helper.make_tensor_value_info
FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 6
TRIPS = (MOST_UNROLLED + 1, 200, 1000)
FEEDS = {"state": floats(2, 1, WIDTH), "start": floats(2, 4, WIDTH, seed=1)}

MIXED = [
    node("MatMul", ["now", "w"], ["mixed"]),
    node("Abs", ["mixed"], ["next"]),
]
"""A state that changes in each trip and stays as long as it was."""

LIST = [*MIXED, node("Concat", ["list", "next"], ["longer"], axis=1)]
LAST = [
    node("Gather", ["list", "minus_one"], ["row"], axis=1),
    node("MatMul", ["row", "w"], ["product"]),
    node("Abs", ["product"], ["more"]),
    node("Concat", ["list", "more"], ["longer"], axis=-2),
    node("Identity", ["now"], ["next"]),
]
WINDOW = [
    node("Identity", ["list"], ["copy"]),
    node("Slice", ["copy", "minus_three", "end", "rows"], ["last"]),
    node("ReduceMax", ["last"], ["top"], axes=[1]),
    node("Mul", ["top", "half"], ["one"]),
    node("Add", ["one", "now"], ["two"]),
    node("Concat", ["copy", "one", "two"], ["longer"], axis=1),
    node("Gather", ["longer", "minus_two"], ["next"], axis=1),
]
"""The last three rows before each trip decide it, and the last but one after it is the state."""


def growing(
    nodes: Sequence[onnx.NodeProto],
    trips: int,
    start: np.ndarray | None = None,
    ends: Sequence[str] = ("Identity", "holds"),
    batch: int | str = 2,
    limit: str = "trips",
) -> onnx.ModelProto:
    """A loop with a state ``now``, and a ``list`` of rows that is an input, or begins as a
    constant."""
    shapes = {"state": [batch, 1, WIDTH], "start": [batch, 4, WIDTH]}
    arguments = ["state"] if start is not None else ["state", "start"]
    constants = {
        "w": np.linalg.qr(floats(WIDTH, WIDTH, seed=2))[0],
        "half": np.array(0.5, np.float32),
        "end": np.array([2**63 - 1]),
        "rows": np.array([1]),
        "minus_one": np.array([-1]),
        "minus_two": np.array([-2]),
        "zero": np.array([0]),
        "most": np.array(2),
        "minus_three": np.array([-3]),
        "low": np.array(0.9, np.float32),
        "trips": np.array(trips),
    } | ({} if start is None else {"start": start})
    body = helper.make_graph(
        [
            *nodes,
            node("ReduceMax", ["next"], ["top of all"], keepdims=0),
            node(ends[0], ends[1:], ["on"]),
        ],
        "body",
        [value("trip", INTEGER, []), value("holds", CONDITION, [])]
        + [value(name, FLOAT, None) for name in ("now", "list")],
        [value("on", CONDITION, []), value("next", FLOAT, None), value("longer", FLOAT, None)],
    )
    inputs = [value(name, FLOAT, shapes[name]) for name in arguments]
    inputs += [value("limit", INTEGER, [])] if limit == "limit" else []
    graph = helper.make_graph(
        [node("Loop", [limit, "", "state", "start"], ["final", "all"], body=body, name="grows")],
        "g",
        inputs,
        [value(name, FLOAT, None) for name in ("final", "all")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def fed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: FEEDS[i.name] for i in model.graph.input}


def assert_close(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


STARTS = {
    "an input": None,
    "a constant": floats(2, 3, WIDTH, seed=3),
    "no rows": np.zeros((2, 0, WIDTH), np.float32),
}


@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("start", STARTS)
def test_rows_of_all_trips_are_appended(start: str, trips: int) -> None:
    model = growing(LIST, trips, STARTS[start])
    graph = import_model(model)
    assert {x.trips for x in graph.nodes if isinstance(x, Loop)} == {trips}
    expected = by_onnxruntime(model, fed(model))
    assert_close(interpret(graph, fed(model)), expected)
    assert_close(qg.compile(model).run(None, fed(model)), expected)


@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("nodes", [LAST, WINDOW], ids=["last", "window"])
def test_the_body_reads_the_last_rows(nodes: Sequence[onnx.NodeProto], trips: int) -> None:
    model = growing(nodes, trips)
    graph = import_model(model)
    assert {x.trips for x in graph.nodes if isinstance(x, Loop)} == {trips}
    expected = by_onnxruntime(model, fed(model))
    assert_close(interpret(graph, fed(model)), expected)
    for threads in (1, 2):
        assert_close(qg.compile(model, num_threads=threads).run(None, fed(model)), expected)


def test_a_few_trips_from_no_rows_are_a_loop() -> None:
    model = growing(LIST, 5, STARTS["no rows"])
    graph = import_model(model)
    assert any(isinstance(x, Loop) for x in graph.nodes)
    assert_close(interpret(graph, fed(model)), by_onnxruntime(model, fed(model)))


def test_free_dimensions_stay_free() -> None:
    model = growing(WINDOW, 70, batch="N")
    compiled = qg.compile(model)
    for batch in (1, 2, 5):
        feeds = {"state": floats(batch, 1, WIDTH), "start": floats(batch, 4, WIDTH, seed=1)}
        assert_close(compiled.run(None, feeds), by_onnxruntime(model, feeds))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trips", mark_slow([65, 200, 1000], {65, 200}))
@pytest.mark.parametrize("nodes", [LIST, LAST], ids=["list", "last"])
def test_int8_is_equal_bit_for_bit(
    nodes: Sequence[onnx.NodeProto], trips: int, threads: int, tmp_path: Path
) -> None:
    model = growing(nodes, trips)
    samples = [{name: scale * array for name, array in FEEDS.items()} for scale in (0.5, 1, 1.3)]
    compiled = qg.quantize_and_compile(
        model, samples, verify=False, progress=False, num_threads=threads
    )
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=threads)
    actual, again = compiled.run(None, FEEDS), loaded.run(None, FEEDS)
    assert_equal(again, actual)
    assert_equal(actual, interpret(compiled.graph, FEEDS))
    (body,) = {x.body for x in compiled.graph.nodes if isinstance(x, Loop)}
    assert any(x.type.dtype is DType.I8 for x in body.compute_nodes())


def assert_equal(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


ALL = [*LIST[:-1], node("ReduceSum", ["list", "rows"], ["sum"])]
ALL += [node("Concat", ["list", "sum"], ["longer"], axis=1)]
FRONT = [node("Gather", ["list", "zero"], ["first"], axis=1)]
FRONT += [*MIXED, node("Concat", ["list", "first"], ["longer"], axis=1)]
SHAPE = [node("Shape", ["list"], ["shape"]), node("Cast", ["shape"], ["sizes"], to=FLOAT)]
SHAPE += [node("ReduceMax", ["sizes"], ["size"], keepdims=0), node("Mul", ["now", "size"], ["r"])]
SHAPE += [*MIXED, node("Concat", ["list", "r"], ["longer"], axis=1)]
COMPUTED = [node("Min", ["trip", "most"], ["few"]), node("Sub", ["minus_one", "few"], ["at"])]
COMPUTED += [node("Gather", ["list", "at"], ["r"], axis=1), *MIXED]
COMPUTED += [node("Concat", ["list", "r"], ["longer"], axis=1)]
BEFORE = [*MIXED, node("Concat", ["next", "list"], ["longer"], axis=1)]


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "nodes",
    [ALL, FRONT, SHAPE, BEFORE, COMPUTED],
    ids=["all", "first", "size", "before", "computed"],
)
def test_other_reads_are_unrolled_or_left_to_onnxruntime(nodes: Sequence[onnx.NodeProto]) -> None:
    few, many = growing(nodes, 5), growing(nodes, MOST_UNROLLED + 1)
    graph = import_model(few)
    assert not any(isinstance(x, Loop) for x in graph.nodes)
    assert_close(interpret(graph, FEEDS), by_onnxruntime(few, FEEDS))
    with pytest.raises(qg.UnsupportedOpError, match="reads only the last of them"):
        import_model(many)
    assert_close(qg.compile(many).run(None, FEEDS), by_onnxruntime(many, FEEDS))


def test_rows_that_are_not_there_before_the_first_trip_are_unrolled() -> None:
    short = floats(2, 2, WIDTH)
    few, many = growing(WINDOW, 5, short), growing(WINDOW, MOST_UNROLLED + 1, short)
    assert_close(interpret(import_model(few), fed(few)), by_onnxruntime(few, fed(few)))
    with pytest.raises(qg.UnsupportedOpError, match="as many before the first trip"):
        import_model(many)


def test_a_condition_that_may_end_the_loop_is_left_to_onnxruntime() -> None:
    model = growing(LIST, 100, ends=("Less", "top of all", "low"))
    with pytest.raises(qg.UnsupportedOpError, match="a value that it carries"):
        import_model(model)
    assert_close(qg.compile(model).run(None, FEEDS), by_onnxruntime(model, FEEDS))


def test_each_number_of_trips_that_is_an_input_has_a_program() -> None:
    model = growing(LIST, 1, limit="limit")
    compiled = qg.compile(model)
    for trips in (1, 70, 200):
        feeds = {**FEEDS, "limit": np.array(trips)}
        assert_close(compiled.run(None, feeds), by_onnxruntime(model, feeds))
