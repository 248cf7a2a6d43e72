"""Random models in which the results of some nodes decide sizes: late points at any place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.importer.onnx.reading.proto import infer

MOST_POINTS = 3
"""Maximum number of late points of a model."""


def with_late_points(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto | None:
    """The model with some values changed in rows that are chosen while it runs; None where no value
    has rows, or the opset no ScatterND.

    The rows whose first element is positive are gathered, computed with, and scattered back: shapes
    behind stay what they were, and the number of rows is 0, 1 or more.
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
        add_point(changed.graph, name, shapes[name], rng)
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


def add_point(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Let what reads a value read it with some rows changed."""
    inner = int(np.prod(shape[1:]))
    known = {
        "wide": np.array([shape[0], -1]),
        "first": np.array(0),
        "zero": np.array(0, np.float32),
        "flat": np.array([-1]),
        "column": np.array([-1, 1]),
        "rows": np.array([-1, inner]),
        "back": np.array([-1, *shape[1:]]),
        "w": rng.normal(size=(inner, inner)).astype(np.float32) / np.float32(inner),
    }

    def of(key: str) -> str:
        return name if key == "value" else f"{name}|{key}"

    def node(kind: str, reads: str, result: str, **attributes: object) -> onnx.NodeProto:
        names = list(map(of, reads.split()))
        return helper.make_node(kind, names, [of(result)], **attributes)

    nodes = [
        node("Reshape", "value wide", "matrix"),
        node("Gather", "matrix first", "firsts", axis=1),
        node("Greater", "firsts zero", "positive"),
        node("NonZero", "positive", "at"),
        node("Reshape", "at flat", "index"),
        node("Reshape", "at column", "places"),
        node("Gather", "value index", "chosen", axis=0),
        node("Reshape", "chosen rows", "vectors"),
        node("MatMul", "vectors w", "product"),
        node("Reshape", "product back", "new"),
        node("ScatterND", "value places new", "changed"),
    ]
    makers = (i for i, item in enumerate(graph.node) if name in item.output)
    after = next(makers, -1) + 1
    for item in graph.node[after:]:
        item.input[:] = [of("changed") if each == name else each for each in item.input]
    others = list(graph.node)
    del graph.node[:]
    graph.node.extend([*others[:after], *nodes, *others[after:]])
    graph.initializer.extend(numpy_helper.from_array(a, of(key)) for key, a in known.items())
