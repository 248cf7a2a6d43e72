"""Loops as decoders are exported: what they carry by signature, and assignments to elements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.ir.ops import Loop
from quantglow.support.errors import OutOfRangeError
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats
from tests.unit.importer.onnx.test_import_loops import assert_compiled, model

node, value = helper.make_node, helper.make_tensor_value_info
FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LENGTH, WIDTH = 6, 4
FEEDS = {"x": floats(1, WIDTH), "limit": np.array(9.0, np.float32)}

CONSTANTS = {
    "trips": np.array(16, np.int64),
    "go": np.array(True),
    "w": floats(WIDTH, WIDTH, seed=1),
    "rows": np.zeros((1, LENGTH, WIDTH), np.float32),
    "i": np.array(0, np.int64),
    "never": np.array(False),
    "nothing": np.array(0.0, np.float32),
    "one": np.array([1], np.int64),
    "last": np.array(LENGTH - 1, np.int64),
    "step": np.array(1, np.int64),
    "step f": np.array(1.0, np.float32),
    "zero": np.array([0], np.int64),
    "size": np.array([LENGTH], np.int64),
    "middle": np.array([1, -1, 1], np.int64),
    "times": np.array([1, 1, WIDTH], np.int64),
}

ASSIGNMENT = [
    node("Cast", ["at"], ["at f"], to=FLOAT),
    node("Add", ["at f", "step f"], ["after f"]),
    node("Cast", ["after f"], ["after"], to=INTEGER),
    node("Reshape", ["at", "one"], ["begin"]),
    node("Reshape", ["after", "one"], ["behind"]),
    node("Min", ["size", "behind"], ["end"]),
    node("Slice", ["list", "begin", "end", "one", "one"], ["old"]),
    node("Shape", ["old"], ["shape"]),
    node("Unsqueeze", ["new", "one"], ["as row"]),
    node("Expand", ["as row", "shape"], ["update"]),
    node("Squeeze", ["begin"], ["from"]),
    node("Squeeze", ["end"], ["to"]),
    node("Range", ["from", "to", "step"], ["numbers"]),
    node("Reshape", ["numbers", "middle"], ["places"]),
    node("Tile", ["places", "times"], ["indices"]),
    node("ScatterElements", ["list", "indices", "update"], ["listed"], axis=1),
]
"""``list[:, at] = new``, as Paddle's exporter writes it."""


def decoder(last: int = LENGTH - 1) -> onnx.ModelProto:
    """Rows of a recurrence, listed until their sum passes a limit, or the list is full."""
    carried = [("w", FLOAT, (WIDTH, WIDTH)), ("state", FLOAT, (1, WIDTH))]
    carried += [("list", FLOAT, (1, LENGTH, WIDTH)), ("at", INTEGER, ())]
    carried += [("over", CONDITION, None), ("unread", FLOAT, None), ("unused", FLOAT, None)]
    steps = [
        node("MatMul", ["state", "w"], ["product"]),
        node("Tanh", ["product"], ["new"]),
        *ASSIGNMENT,
        node("ReduceSum", ["listed"], ["sum"], keepdims=0),
        node("Greater", ["sum", "limit"], ["passed"]),
        node("If", ["passed"], ["over now"], then_branch=always(), else_branch=kept()),
        node("Less", ["after", "last"], ["room"]),
        node("Not", ["over now"], ["below"]),
        node("And", ["room", "below"], ["on"]),
        node("Identity", ["w"], ["same w"]),
        node("Identity", ["listed"], ["copy"]),
    ]
    ends = ["same w", "new", "listed", "after", "over now", "copy", "product"]
    body = helper.make_graph(
        steps,
        "body",
        [value("trip", INTEGER, ()), value("holds", CONDITION, ())]
        + [value(*kind) for kind in carried],
        [value("on", CONDITION, None), *(value(name, FLOAT, None) for name in ends)],
    )
    for output, kind in zip(body.output[1:], carried, strict=True):
        output.type.tensor_type.elem_type = kind[1]
    first = ["w", "x", "rows", "i", "never", "nothing", "nothing"]
    outputs = [f"{name} after" for name in ("w", "state", "list", "at", "over", "rows", "unused")]
    nodes = [
        node("Loop", ["trips", "go", *first], outputs, body=body),
        node("MatMul", ["state after", "w after"], ["y"]),
        node("Cast", ["at after"], ["count"], to=FLOAT),
    ]
    constants = {**CONSTANTS, "last": np.array(last, np.int64)}
    return model(nodes, FEEDS, ["y", "rows after", "count"], **constants)


def always() -> onnx.GraphProto:
    true = numpy_helper.from_array(np.array(True), "constant")
    nodes = [node("Constant", [], ["taken"], value=true)]
    return helper.make_graph(nodes, "then", [], [value("taken", CONDITION, ())])


def kept() -> onnx.GraphProto:
    nodes = [
        node("Cast", ["over"], ["number"], to=INTEGER),
        node("Add", ["number", "zero"], ["added"]),
        node("Cast", ["added"], ["other"], to=CONDITION),
    ]
    return helper.make_graph(nodes, "else", [], [value("other", CONDITION, (1,))])


@pytest.mark.parametrize("limit", [-9.0, 0.5, 9.0])
def test_a_decoder_that_assigns_rows_is_compiled(limit: float) -> None:
    assert_compiled(decoder(), {**FEEDS, "limit": np.array(limit, np.float32)})


def test_weights_that_a_loop_carries_are_constants_of_its_body() -> None:
    (loop, *_) = [value for value in import_model(decoder()).nodes if isinstance(value, Loop)]
    assert (WIDTH, WIDTH) not in [x.type.shape for x in (*loop.carried, *loop.captured)]


def test_an_assignment_out_of_range_is_an_error() -> None:
    with pytest.raises(OutOfRangeError, match=f"axis of length {LENGTH}"):
        qg.compile(decoder(last=LENGTH + 2)).run(None, FEEDS)


@pytest.mark.parametrize("selected", [False, True])
def test_branches_of_other_ranks_outside_of_loops_keep_them(selected: bool) -> None:
    feeds = {"x": floats(1, WIDTH), "over": np.array(False), "passed": np.array(selected)}
    nodes = [
        node("If", ["passed"], ["now"], then_branch=always(), else_branch=kept()),
        node("Cast", ["now"], ["y"], to=FLOAT),
        node("Neg", ["x"], ["z"]),
    ]
    network = model(nodes, feeds, ["y", "z"], zero=np.array([0], np.int64))
    (actual, _), (expected, _) = (
        qg.compile(network).run(None, feeds),
        by_onnxruntime(network, feeds),
    )
    assert np.shape(actual) == np.shape(expected)


def spans(kind: str, first: int = 0) -> onnx.ModelProto:
    """Rows of two elements of x, or their numbers, from ``first`` on, one a trip."""
    slices = [node("Slice", ["x", "begin", "end", "axis"], ["row"])]
    ranges = [
        node("Squeeze", ["begin"], ["from"]),
        node("Squeeze", ["end"], ["to"]),
        node("Range", ["from", "to", "step"], ["numbers"]),
        node("Cast", ["numbers"], ["row"], to=FLOAT),
    ]
    steps = [
        node("Add", ["trip", "first"], ["begin"]),
        node("Add", ["begin", "two"], ["behind"]),
        node("Min", ["behind", "seven"], ["end"]),
        *(slices if kind == "slices" else ranges),
        node("Identity", ["holds"], ["on"]),
    ]
    body = helper.make_graph(
        steps,
        "body",
        [value("trip", INTEGER, ()), value("holds", CONDITION, ())],
        [value("on", CONDITION, ()), value("row", FLOAT, None)],
    )
    numbers = {"first": [first], "two": [2], "seven": [7], "axis": [-1], "step": 1, "count": 3}
    constants = {name: np.array(number) for name, number in numbers.items()}
    nodes = [node("Loop", ["count", ""], ["rows"], body=body), node("Neg", ["x"], ["y"])]
    return model(nodes, {"x": floats(3, 7)}, ["rows", "y"], **constants)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("kind", ["slices", "ranges"])
def test_spans_of_known_length(kind: str, first: int) -> None:
    assert_compiled(spans(kind, first), {"x": floats(3, 7)})


@pytest.mark.parametrize("first", [-3, 5, 40])
@pytest.mark.parametrize("kind", ["slices", "ranges"])
def test_spans_that_would_be_shorter_are_errors(kind: str, first: int) -> None:
    with pytest.raises(OutOfRangeError):
        qg.compile(spans(kind, first)).run(None, {"x": floats(3, 7)})


@pytest.mark.parametrize("end", ["Add", "Mul"])
@pytest.mark.parametrize("start", [0, 2, 6, 9])
def test_spans_outside_of_loops_may_be_shorter(start: int, end: str) -> None:
    feeds = {"x": floats(3, 7), "i": np.array([start], np.int64)}
    nodes = [
        node(end, ["i", "two"], ["behind"]),
        node("Slice", ["x", "i", "behind", "axis"], ["y"]),
    ]
    constants = {"two": np.array([2], np.int64), "axis": np.array([1], np.int64)}
    network = model(nodes, feeds, ["y"], **constants)
    (actual,) = qg.compile(network).run(None, feeds)
    np.testing.assert_array_equal(actual, by_onnxruntime(network, feeds)[0])
