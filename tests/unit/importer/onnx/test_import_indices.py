"""Indices out of range: refused where onnxruntime refuses them, by every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.ort.session import failures
from quantglow.support.errors import ModelError, OutOfRangeError
from tests.support.effort import moderate
from tests.unit.importer.onnx.onnx_models import Const, floats, single

Arrays = dict[str, np.ndarray]


def whole(draw: st.DrawFn, lengths: list[int], *shape: int) -> np.ndarray:
    """Indices for axes of these lengths, along the last axis; with some luck all are in range."""
    beyond = draw(st.sampled_from([0, 0, 1, 2**40]))
    seed = draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-n - beyond, n + beyond, shape) for n in lengths]
    kind = np.int64 if beyond > 1 else draw(st.sampled_from([np.int32, np.int64]))
    return np.stack(columns, -1).astype(kind)


def at_most(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is nowhere larger."""
    return draw(st.tuples(*(st.integers(1, size) for size in shape)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[onnx.ModelProto, Arrays]:
    """A model of one operator whose last operands are indices, or updates behind them."""
    op = draw(st.sampled_from(sorted(OPERATORS)))
    return OPERATORS[op](draw, floats(*draw(st.tuples(*[st.integers(1, 4)] * 3))))


def gather(draw: st.DrawFn, x: np.ndarray) -> Any:
    axis = draw(st.integers(0, 2))
    return single("Gather", x, whole(draw, [x.shape[axis]], 4)[:, 0], axis=axis)


def gather_elements(draw: st.DrawFn, x: np.ndarray) -> Any:
    axis, shape = draw(st.integers(0, 2)), at_most(draw, x.shape)
    return single("GatherElements", x, whole(draw, [x.shape[axis]], *shape)[..., 0], axis=axis)


def gather_nd(draw: st.DrawFn, x: np.ndarray) -> Any:
    batch = draw(st.integers(0, 1))
    lengths = list(x.shape[batch : draw(st.integers(batch + 1, 3))])
    indices = whole(draw, lengths, *x.shape[:batch], 3).astype(np.int64)
    return single("GatherND", x, indices, batch_dims=batch)


def scatter_elements(draw: st.DrawFn, x: np.ndarray) -> Any:
    axis, shape = draw(st.integers(0, 2)), at_most(draw, x.shape)
    indices = whole(draw, [x.shape[axis]], *shape)[..., 0]
    updates = floats(*shape)
    return single("ScatterElements", x, indices, updates, axis=axis, opset=18, reduction="max")


def scatter_nd(draw: st.DrawFn, x: np.ndarray) -> Any:
    depth = draw(st.integers(1, 3))
    indices = whole(draw, list(x.shape[:depth]), 3).astype(np.int64)
    updates = floats(3, *x.shape[depth:])
    return single("ScatterND", x, indices, updates, opset=18, reduction="max")


def one_hot(draw: st.DrawFn, x: np.ndarray) -> Any:
    indices = whole(draw, [x.shape[0]], 4)[:, 0].astype(np.int64)
    values = Const(np.array([0, 1], np.float32))
    return single("OneHot", indices, Const(np.array([x.shape[0]])), values)


def reverse_sequence(draw: st.DrawFn, x: np.ndarray) -> Any:
    lengths = abs(whole(draw, [x.shape[0] + 1], x.shape[1])[:, 0].astype(np.int64))
    return single("ReverseSequence", x, lengths)


OPERATORS = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
}


def by_onnxruntime(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray] | None:
    """The outputs, or None if onnxruntime refuses the indices."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    try:
        return list(session.run(None, feeds))
    except failures():
        return None


@pytest.mark.slow
@moderate
@given(cases(), st.integers(1, 3))
def test_indices_are_refused_where_onnxruntime_refuses_them(
    case: tuple[onnx.ModelProto, Arrays], threads: int
) -> None:
    model, feeds = case
    results = by_onnxruntime(model, feeds)
    graph = qg.import_model(model)
    compiled = [
        qg.compile(graph, num_threads=threads),
        qg.compile(graph, target="x86-64", num_threads=threads),
        qg.compile(graph, backend="reference"),
    ]
    runs = [lambda: qg.interpret(graph, feeds), *(lambda m=m: m.run(None, feeds) for m in compiled)]
    for run in runs:
        if results is None:
            with pytest.raises(OutOfRangeError, match=r"'y': index .* axis of length"):
                run()
        else:
            np.testing.assert_array_equal(run()[0], results[0])


@pytest.mark.parametrize("op", sorted(OPERATORS.keys() - {"OneHot"}))
def test_known_indices_are_refused_at_import(op: str) -> None:
    x, far = floats(2, 3, 4), np.full((2, 3, 1), 9)
    operands = {
        "Gather": (x, far[:, 0, 0]),
        "GatherElements": (x, np.broadcast_to(far, x.shape)),
        "GatherND": (x, far),
        "ScatterElements": (x, np.broadcast_to(far, x.shape), x),
        "ScatterND": (x, far, floats(2, 3, 3, 4)),
        "ReverseSequence": (x, far[0, :, 0]),
    }[op]
    known = (operands[0], Const(np.ascontiguousarray(operands[1])), *operands[2:])
    model, _ = single(op, *known, opset=18)
    with pytest.raises(ModelError, match=r"the_node.*index 9 is out of range for an axis of"):
        qg.import_model(model)


@pytest.mark.parametrize("op", ["GatherElements", "ScatterElements"])
@pytest.mark.parametrize("is_first", [False, True])
def test_more_indices_than_elements_along_another_axis_are_refused(op: str, is_first: bool) -> None:
    """Without a check, they would be elements of the next row."""
    values = (np.zeros((3, 4), np.int64), *([floats(3, 4)] if op == "ScatterElements" else []))
    model, _ = single(op, floats(3, 4), *map(Const, values), axis=0, opset=18)
    (inputs,), (result,) = model.graph.input, model.graph.output
    inputs.type.tensor_type.shape.dim[1].dim_param = "N"
    result.type.tensor_type.ClearField("shape")
    compiled: Any = qg.compile(model, num_threads=1)
    for columns in (3, 4, 5, 3) if is_first else (4, 5, 3):
        feeds = {inputs.name: floats(3, columns)}
        results = by_onnxruntime(model, feeds)
        if results is None:
            assert columns == 3
            with pytest.raises(qg.QuantglowError):
                compiled.run(None, feeds)
        else:
            np.testing.assert_array_equal(compiled.run(None, feeds)[0], results[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_index_in_one_piece_of_a_batch_is_found(threads: int) -> None:
    x, indices = floats(8, 5, 4), np.zeros((8, 5, 4), np.int64)
    model, feeds = single("GatherElements", x, indices, axis=1)
    compiled = qg.compile(model, num_threads=threads)
    for sample in range(8):
        bad = indices.copy()
        bad[sample, 2, 1] = -6
        with pytest.raises(OutOfRangeError, match=r"index -6 .* length 5"):
            compiled.run(None, {**feeds, "x1": bad})
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], x[:, :1].repeat(5, 1))


def branched(op: str) -> onnx.ModelProto:
    """If(condition): x at indices i, else at 0; or x with its rows i replaced, else x."""
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    info, node = helper.make_tensor_value_info, helper.make_node
    if op == "Gather":
        some = [node("Gather", ["x", "i"], ["t"])]
        none = [node("Mul", ["i", "zero"], ["j"]), node("Gather", ["x", "j"], ["e"])]
    else:
        some = [node("ScatterElements", ["x", "rows", "x"], ["t"], reduction="max")]
        none = [node("Neg", ["x"], ["n"]), node("Neg", ["n"], ["e"])]
    bodies = {
        "then_branch": helper.make_graph(some, "then", [], [info("t", f32, [3, 4])]),
        "else_branch": helper.make_graph(none, "else", [], [info("e", f32, [3, 4])]),
    }
    nodes = [
        node("Expand", ["column", "wide"], ["rows"]),
        node("If", ["condition"], ["y"], **bodies),
    ]
    nodes = [node("Reshape", ["i", "tall"], ["column"]), *nodes]
    inputs = [
        info("x", f32, [3, 4]),
        info("i", i64, [3]),
        info("condition", TensorProto.BOOL, []),
    ]
    constants = [
        helper.make_tensor("zero", i64, [], [0]),
        helper.make_tensor("tall", i64, [2], [3, 1]),
        helper.make_tensor("wide", i64, [2], [3, 4]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", f32, [3, 4])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("op", ["Gather", "ScatterElements"])
def test_a_branch_that_is_not_taken_may_have_any_indices(op: str) -> None:
    model, x = branched(op), floats(3, 4)
    graph, compiled = qg.import_model(model), qg.compile(model)
    feeds = {"x": x, "i": np.array([0, 9, -9]), "condition": np.array(False)}
    (expected,) = by_onnxruntime(model, feeds) or [None]
    for (value,) in (qg.interpret(graph, feeds), compiled.run(None, feeds)):
        np.testing.assert_array_equal(value, expected)
    selected = {**feeds, "condition": np.array(True)}
    for run in (lambda: qg.interpret(graph, selected), lambda: compiled.run(None, selected)):
        with pytest.raises(OutOfRangeError, match=r"index -?9 .* length 3"):
            run()
