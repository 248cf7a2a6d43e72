"""Scan and Loop compute what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.operators.controlflow.loops import MOST_UNROLLED
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

node, value = helper.make_node, helper.make_tensor_value_info
FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FEEDS = {"x": floats(4, 6), "start": floats(4, seed=1), "w": floats(4, seed=2)}


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: dict[str, np.ndarray],
    outputs: Sequence[str],
    **constants: np.ndarray,
) -> onnx.ModelProto:
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, kinds[name], array.shape) for name, array in feeds.items()],
        [value(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def assert_compiled(built: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> None:
    """No operator is left to onnxruntime, which gives the same results."""
    assert not any(n.op == "External" for n in import_model(built).nodes)
    compiled = qg.compile(built)
    for fed in feeds:
        for value, expected in zip(
            compiled.run(None, fed), by_onnxruntime(built, fed), strict=True
        ):
            assert value.shape == expected.shape
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def scan(**attributes: object) -> onnx.ModelProto:
    """A recurrence with weights that are computed outside, over the columns of x."""
    body = helper.make_graph(
        [
            node("Mul", ["state", "double"], ["kept"]),
            node("Add", ["kept", "element"], ["sum"]),
            node("Tanh", ["sum"], ["next"]),
            node("Neg", ["next"], ["row"]),
        ],
        "body",
        [value("state", FLOAT, [4]), value("element", FLOAT, [4])],
        [value("next", FLOAT, [4]), value("row", FLOAT, [4])],
    )
    nodes = [
        node("Add", ["w", "w"], ["double"]),
        node("Scan", ["start", "x"], ["last", "rows"], body=body, num_scan_inputs=1, **attributes),
    ]
    return model(nodes, FEEDS, ["last", "rows"])


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan(axis: int, way: int) -> None:
    attributes = {"scan_input_axes": [1], "scan_output_axes": [axis]}
    ways = {"scan_input_directions": [way], "scan_output_directions": [1 - way]}
    assert_compiled(scan(**attributes, **ways), FEEDS)


def loop(
    trips: str, condition: str, ends: str, feeds: dict[str, np.ndarray], stacks: bool = True
) -> onnx.ModelProto:
    """A value that doubles and counts, for ``trips``, while the condition ``ends`` holds."""
    body = helper.make_graph(
        [
            node("Cast", ["number"], ["count"], to=FLOAT),
            node("Add", ["state", "state"], ["twice"]),
            node("Add", ["twice", "count"], ["next"]),
            node("ReduceSum", ["next"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["computed"]),
            node("Identity", ["holds"], ["given"]),
            node("Identity", [ends], ["on"]),
            node("Identity", ["next"], ["row"]),
        ],
        "body",
        [value("number", INTEGER, []), value("holds", CONDITION, []), value("state", FLOAT, [4])],
        [value("on", CONDITION, []), value("next", FLOAT, [4])]
        + [value("row", FLOAT, [4])] * stacks,
    )
    results = ["last", "rows"] if stacks else ["last"]
    nodes = [node("Loop", [trips, condition, "start"], results, body=body)]
    constants = {"limit": np.array(40, np.float32), "five": np.array(5), "true": np.array(True)}
    return model(nodes, feeds, results, **constants, false=np.array(False), zero=np.array(0))


START = {"start": np.abs(floats(4))}


@pytest.mark.parametrize("condition", ["", "true"])
def test_a_loop_of_known_trips(condition: str) -> None:
    assert_compiled(loop("five", condition, "given", START), START)


@pytest.mark.parametrize("trips", ["", "five"])
def test_a_loop_that_a_condition_ends(trips: str) -> None:
    assert_compiled(loop(trips, "", "computed", START, stacks=False), START)


@pytest.mark.parametrize(("trips", "condition"), [("zero", ""), ("five", "false")])
def test_a_loop_without_trips(trips: str, condition: str) -> None:
    assert_compiled(loop(trips, condition, "given", START, stacks=False), START)


def test_a_loop_whose_trips_and_condition_are_inputs() -> None:
    fed = [
        {**START, "trips": np.array(n), "first": np.array(first)}
        for n, first in ((0, True), (1, True), (9, True), (9, False))
    ]
    assert_compiled(loop("trips", "first", "computed", fed[0], stacks=False), *fed)


def test_an_unknown_number_of_rows_is_left_to_onnxruntime() -> None:
    built = loop("five", "", "computed", START)
    with pytest.raises(qg.UnsupportedOpError, match="number of trips that it computes"):
        import_model(built)
    for value, expected in zip(
        qg.compile(built).run(None, START), by_onnxruntime(built, START), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def growing(trips: int, ended: bool = False) -> onnx.ModelProto:
    """A value that is joined with its sum in each trip, and the products of a trip's number."""
    ends = ["Less", "total", "limit"] if ended else ["Identity", "holds"]
    body = helper.make_graph(
        [
            node("ReduceSum", ["state"], ["total"], keepdims=1),
            node("Concat", ["state", "total"], ["next"], axis=0),
            node("Cast", ["number"], ["count"], to=FLOAT),
            node("Mul", ["total", "count"], ["row"]),
            node(ends[0], ends[1:], ["on"]),
        ],
        "body",
        [
            value("number", INTEGER, []),
            value("holds", CONDITION, []),
            value("state", FLOAT, [None]),
        ],
        [value("on", CONDITION, None), value("next", FLOAT, [None]), value("row", FLOAT, [None])],
    )
    nodes = [node("Loop", ["trips", "", "start"], ["last", "rows"], body=body)]
    limits = {"trips": np.array(trips), "limit": np.array([40], np.float32)}
    return model(nodes, START, ["last", "rows"], **limits)


def test_a_value_that_grows_is_unrolled() -> None:
    assert_compiled(growing(5), START)


@pytest.mark.parametrize(("trips", "ended"), [(MOST_UNROLLED + 1, False), (5, True)])
def test_a_value_that_grows_for_long_is_left_to_onnxruntime(trips: int, ended: bool) -> None:
    with pytest.raises(qg.UnsupportedOpError, match=r"it carries|it computes"):
        import_model(growing(trips, ended))
