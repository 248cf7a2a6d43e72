"""Models of one Loop whose number of trips, or whose end, is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.support.arrays import Array

FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 8

node, value = helper.make_node, helper.make_tensor_value_info


def body_of(
    nodes: Sequence[onnx.NodeProto],
    carried: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    holds: str = "",
    prefix: str = "",
    constants: Mapping[str, Array] | None = None,
) -> onnx.GraphProto:
    """A body that takes carried values and gives others, each with its element type; ``holds``: the
    condition behind a trip, by default the one before it.  Names of both begin with ``prefix``."""
    trip, before, after = f"{prefix}trip", f"{prefix}holds", f"{prefix}on"
    return helper.make_graph(
        [*nodes, node("Identity", [holds or before], [after])],
        f"{prefix}body",
        [value(trip, INTEGER, []), value(before, CONDITION, [])]
        + [value(name, kind, None) for name, kind in carried.items()],
        [value(after, CONDITION, [])] + [value(name, kind, None) for name, kind in ends.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, int],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model; outputs have no declared shape."""
    graph = helper.make_graph(
        nodes,
        "computed",
        [value(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [value(name, kind, None) for name, kind in outputs.items()],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in (constants or {}).items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def growing_loop(
    rows: Any = 3, *, conditional: bool = False, behind: bool = True
) -> onnx.ModelProto:
    """A state and a value to which each trip appends a row that it computes from all rows.

    ``trips`` is an input, or where ``conditional`` the trip behind which the loop ends.  The rows
    and the states of all trips are multiplied ``behind`` the loop.
    """
    nodes = [
        node("MatMul", ["rows", "w"], ["products"]),
        node("ReduceMean", ["products"], ["mean"], axes=[0], keepdims=1),
        node("Add", ["mean", "state"], ["sum"]),
        node("Tanh", ["sum"], ["next"]),
        node("Concat", ["rows", "next"], ["more"], axis=0),
        node("Less", ["trip", "trips"], ["goes on"]),
    ]
    carried = {"state": FLOAT, "rows": FLOAT}
    ends = {"next": FLOAT, "more": FLOAT, "next row": FLOAT}
    nodes.append(node("Identity", ["next"], ["next row"]))
    body = body_of(nodes, carried, ends, holds="goes on" if conditional else "")
    body.output[3].CopyFrom(value("next row", FLOAT, [1, WIDTH]))
    outer = [
        node("Relu", ["x"], ["first"]),
        node("Loop", ["" if conditional else "trips", "", "s", "first"],
             ["last", "all", "states"], body=body),
    ]  # fmt: skip
    outputs = {"last": FLOAT, "all": FLOAT}
    if behind:
        outer += [
            node("MatMul", ["all", "w"], ["y"]),
            node("MatMul", ["states", "w"], ["z"]),
        ]
        outputs |= {"y": FLOAT, "z": FLOAT}
    inputs = {"x": (FLOAT, [rows, WIDTH]), "s": (FLOAT, [1, WIDTH]), "trips": (INTEGER, [])}
    w = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32) * np.float32(0.4)
    return model_of(outer, inputs, outputs, {"w": w})


def growing_feeds(trips: int, rows: int = 3, seed: int = 0) -> dict[str, Array]:
    """Inputs of ``growing_loop``."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, WIDTH)).astype(np.float32),
        "s": rng.normal(size=(1, WIDTH)).astype(np.float32),
        "trips": np.array(trips),
    }
