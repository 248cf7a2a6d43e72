"""Random models in which the results of some nodes decide sizes: late points at any place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.importer.onnx.reading.proto import infer

MOST_POINTS = 3
"""Maximum number of late points of a model."""

MOST_ELEMENTS = 512
"""Maximum size of a value that a loop carries."""


def with_late_points(
    model: onnx.ModelProto,
    rng: np.random.Generator,
    points: Sequence[Callable[..., None]] | None = None,
) -> onnx.ModelProto | None:
    """The model with some values changed at late points, each of a kind in ``points``; None where
    no value has rows, or the opset no ScatterND.

    Shapes behind a point are what they were.
    """
    if next(entry.version for entry in model.opset_import if not entry.domain) < 11:
        return None
    shapes = dict(value_shapes(model))
    if not shapes:
        return None
    names = rng.permutation(sorted(shapes))[: rng.integers(1, MOST_POINTS + 1)]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for name in map(str, names):
        kinds = points or (add_point,)
        kinds[rng.integers(len(kinds)) if points else 0](changed.graph, name, shapes[name], rng)
    return changed


def value_shapes(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of float values with rows that some node of the main graph reads."""
    graph = infer(model).graph
    read = {name for item in model.graph.node for name in item.input}
    for info in (*graph.input, *graph.value_info):
        kind = info.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        if kind.elem_type == TensorProto.FLOAT and shape and all(shape) and info.name in read:
            yield info.name, shape


class Point:
    """Nodes that change a value, and their constants; names of the model's own are told apart by
    that of the value."""

    def __init__(self, graph: onnx.GraphProto, value: str) -> None:
        self.graph, self.value = graph, value

    def of(self, key: str) -> str:
        """The name of one of its values; ``value`` is the one that it changes, ``-`` is none."""
        return {"value": self.value, "-": ""}.get(key, f"{self.value}|{key}")

    def node(self, kind: str, reads: str, results: str, **attributes: object) -> onnx.NodeProto:
        """A node; keys stand apart by commas."""
        names = (list(map(self.of, keys.split(", "))) for keys in (reads, results))
        return helper.make_node(kind, *names, **attributes)

    def add(self, constants: Mapping[str, np.ndarray], nodes: Sequence[onnx.NodeProto]) -> None:
        """Let what reads the value read the one called ``changed``."""
        insert(self.graph, self.value, self.of("changed"), nodes)
        tensors = (numpy_helper.from_array(array, self.of(key)) for key, array in constants.items())
        self.graph.initializer.extend(tensors)


def add_point(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Let what reads a value read it with some rows changed: those whose first element is positive
    are gathered, computed with, and scattered back.  Their number is 0, 1 or more."""
    inner = int(np.prod(shape[1:]))
    constants = {
        "wide": np.array([shape[0], -1]),
        "first": np.array(0),
        "zero": np.array(0, np.float32),
        "flat": np.array([-1]),
        "column": np.array([-1, 1]),
        "rows": np.array([-1, inner]),
        "back": np.array([-1, *shape[1:]]),
        "w": rng.normal(size=(inner, inner)).astype(np.float32) / np.float32(inner),
    }

    point = Point(graph, name)
    node = point.node
    nodes = [
        node("Reshape", "value, wide", "matrix"),
        node("Gather", "matrix, first", "firsts", axis=1),
        node("Greater", "firsts, zero", "positive"),
        node("NonZero", "positive", "at"),
        node("Reshape", "at, flat", "index"),
        node("Reshape", "at, column", "places"),
        node("Gather", "value, index", "chosen", axis=0),
        node("Reshape", "chosen, rows", "vectors"),
        node("MatMul", "vectors, w", "product"),
        node("Reshape", "product, back", "new"),
        node("ScatterND", "value, places, new", "changed"),
    ]
    point.add(constants, nodes)


def add_counted(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Let what reads a value read a product of a matrix and its rows, all of which are chosen: the
    number that a run gives is the only one with which the product can be computed."""
    rows, inner = shape[0], int(np.prod(shape[1:]))
    if not 1 < rows <= MOST_ELEMENTS:
        add_point(graph, name, shape, rng)
        return
    constants = {
        "wide": np.array([rows, -1]),
        "first": np.array(0),
        "least": np.array(-1, np.float32),
        "flat": np.array([-1]),
        "rows": np.array([-1, inner]),
        "back": np.array(shape),
        "w": rng.normal(size=(rows, rows)).astype(np.float32) / np.float32(rows),
    }

    point = Point(graph, name)
    node = point.node
    nodes = [
        node("Reshape", "value, wide", "matrix"),
        node("Gather", "matrix, first", "firsts", axis=1),
        node("Abs", "firsts", "sizes"),
        node("Greater", "sizes, least", "any"),
        node("NonZero", "any", "at"),
        node("Reshape", "at, flat", "index"),
        node("Gather", "value, index", "chosen", axis=0),
        node("Reshape", "chosen, rows", "vectors"),
        node("Transpose", "vectors", "turned", perm=[1, 0]),
        node("MatMul", "turned, w", "product"),
        node("Transpose", "product", "new", perm=[1, 0]),
        node("Reshape", "new, back", "changed"),
    ]
    point.add(constants, nodes)


def add_pieces(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Let what reads a value read its sum with the mean of an item of a sequence and what is left:
    the first rows, as many as are positive, are erased and inserted again, changed.  Their number
    is 0, 1 or more."""
    inner = int(np.prod(shape[1:]))
    constants = {
        "wide": np.array([shape[0], -1]),
        "first": np.array(0),
        "zero": np.array(0, np.float32),
        "one": np.array([1]),
        "total": np.array([shape[0]]),
        "rows": np.array([-1, inner]),
        "items": np.array([-1, *shape[1:]]),
        "turnable": np.array([-1, 1, inner]),
        "line": np.array([1, inner, -1]),
        "back": np.array([1, *shape[1:]]),
        "w": rng.normal(size=(inner, inner)).astype(np.float32) / np.float32(inner),
    }

    point = Point(graph, name)
    node = point.node
    nodes = [
        node("Reshape", "value, wide", "matrix"),
        node("Gather", "matrix, first", "firsts", axis=1),
        node("Greater", "firsts, zero", "positive"),
        node("Cast", "positive", "ones", to=TensorProto.INT64),
        node("ReduceSum", "ones", "sum", keepdims=0),
        node("Reshape", "sum, one", "count"),
        node("Sub", "total, count", "others"),
        node("Concat", "count, others", "sizes", axis=0),
        node("SplitToSequence", "value, sizes", "pieces", axis=0),
        node("SequenceAt", "pieces, first", "chosen"),
        node("SequenceErase", "pieces, first", "rest"),
        node("Reshape", "chosen, rows", "vectors"),
        node("MatMul", "vectors, w", "product"),
        node("Reshape", "product, items", "new"),
        node("SequenceInsert", "rest, new, first", "joined"),
        node("ConcatFromSequence", "joined", "whole", axis=0),
        node("Reshape", "whole, turnable", "matrices"),
        *_mean("after", "matrices", node),
        node("Reshape", "after mean, back", "mean"),
        node("Add", "value, mean", "changed"),
    ]
    point.add(constants, nodes)


def add_loop(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Let what reads a value read the mean of the states of a Loop, which is not longer than the
    number of its positive rows: a state begins as the value, and appends itself to all states, of
    which the next one has a part.

    The number of trips, or a condition, is computed; the states are carried, or stacked.
    """
    inner = int(np.prod(shape[1:]))
    if shape[0] * inner > MOST_ELEMENTS:
        add_point(graph, name, shape, rng)
        return
    constants = {
        "wide": np.array([shape[0], -1]),
        "first": np.array(0),
        "zero": np.array(0, np.float32),
        "one": np.array(1, np.int64),
        "flat": np.array([1, shape[0], inner]),
        "matrix shape": np.array([shape[0], inner]),
        "back": np.array(shape),
        "line": np.array([1, shape[0] * inner, -1]),
        "w": rng.normal(size=(inner, inner)).astype(np.float32) / np.float32(inner),
    }

    point = Point(graph, name)
    of, node = point.of, point.node
    is_stacked, is_conditional = (bool(rng.integers(2)) for _ in range(2))
    trip_nodes = [
        node("MatMul", "state, w", "product"),
        *_mean("before", "history", node),
        node("Reshape", "before mean, matrix shape", "mean of all"),
        node("Add", "product, mean of all", "sum"),
        node("Tanh", "sum", "next"),
        node("Reshape", "next, flat", "row"),
        node("Concat", "history, row", "longer", axis=0),
        node("Add", "trip, one", "following"),
        node("Less", "following, count", "is next")
        if is_conditional
        else node("Identity", "holds", "is next"),
        node("Identity", "next", "stackable"),
    ]
    state, history = [shape[0], inner], [None, shape[0], inner]
    value = helper.make_tensor_value_info
    takes = [
        value(of("trip"), TensorProto.INT64, []),
        value(of("holds"), TensorProto.BOOL, []),
        value(of("state"), TensorProto.FLOAT, state),
        value(of("history"), TensorProto.FLOAT, history),
    ]
    gives = [
        value(of("is next"), TensorProto.BOOL, []),
        value(of("next"), TensorProto.FLOAT, state),
        value(of("longer"), TensorProto.FLOAT, history),
        value(of("stackable"), TensorProto.FLOAT, state),
    ]
    body = helper.make_graph(trip_nodes, of("body"), takes, gives)
    last = "start, stacked" if is_stacked else "grown"
    nodes = [
        node("Reshape", "value, wide", "matrix"),
        node("Gather", "matrix, first", "firsts", axis=1),
        node("Greater", "firsts, zero", "positive"),
        node("Cast", "positive", "ones", to=TensorProto.INT64),
        node("ReduceSum", "ones", "count", keepdims=0),
        node("Less", "first, count", "some"),
        node("Reshape", "matrix, flat", "start"),
        node(
            "Loop",
            "-, some, matrix, start" if is_conditional else "count, -, matrix, start",
            "last, grown, stacked",
            body=body,
        ),
        node("Concat", last, "states", axis=0),
        *_mean("after", "states", node),
        node("Reshape", "after mean, back", "changed"),
    ]
    point.add(constants, nodes)


def _mean(
    prefix: str, value: str, node: Callable[..., onnx.NodeProto]
) -> tuple[onnx.NodeProto, ...]:
    """The mean of a value along its first axis, in operators that have one form in all opsets."""
    return (
        node("Transpose", value, f"{prefix} turned", perm=[1, 2, 0]),
        node("Reshape", f"{prefix} turned, line", f"{prefix} line"),
        node("GlobalAveragePool", f"{prefix} line", f"{prefix} mean"),
    )


def insert(
    graph: onnx.GraphProto, name: str, changed: str, nodes: Sequence[onnx.NodeProto]
) -> None:
    """Put nodes behind the one that computes a value; those after them read ``changed`` for it."""
    makers = (i for i, item in enumerate(graph.node) if name in item.output)
    after = next(makers, -1) + 1
    for item in graph.node[after:]:
        item.input[:] = [changed if each == name else each for each in item.input]
    others = list(graph.node)
    del graph.node[:]
    graph.node.extend([*others[:after], *nodes, *others[after:]])
