"""A Loop that reads all rows that it appended so far: attention over its own history."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.support.arrays import Array
from tests.support.deformable import weights

WIDTH, HEADS = 16, 2
FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LAYERS = ("wq", "wk", "wv", "wo")


def attending_loop(
    trips: int | None,
    *,
    batch: int | str = 1,
    start: int | str = 1,
    stops: bool = False,
    numbered: bool = False,
    behind: bool = False,
) -> onnx.ModelProto:
    """A state attends to ``keys`` and ``values``, to which it appends a row in each trip.

    trips     the constant number of them; None: the input ``trips``
    batch     a size, or the name of a free one
    start     rows before the first trip, or the name of their free number
    stops     a condition ends the loop at the trip ``stop``, an input
    numbered  the state depends on the number of the trip, too
    behind    a product reads the states of all trips: ``y``
    """
    node, value = helper.make_node, helper.make_tensor_value_info
    inner = [
        *(node("MatMul", ["now", f"w{x}"], [x]) for x in "qkv"),
        node("Concat", ["keys", "k"], ["all keys"], axis=1),
        node("Concat", ["values", "v"], ["all values"], axis=1),
        *(
            node("Reshape", [x, "split"], [f"{y} apart"])
            for x, y in zip(("q", "all keys", "all values"), "qkv", strict=True)
        ),
        node("Transpose", ["q apart"], ["q heads"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k apart"], ["k heads"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v apart"], ["v heads"], perm=[0, 2, 1, 3]),
        node("MatMul", ["q heads", "k heads"], ["products"]),
        node("Softmax", ["products"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v heads"], ["found"]),
        node("Transpose", ["found"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "merge"], ["merged"]),
        node("MatMul", ["merged", "wo"], ["out"]),
        node("Add", ["out", "now"], ["both"]),
        node("Mul", ["both", "half"], ["sum"]),
    ]
    if numbered:
        inner += [
            node("Cast", ["trip"], ["number"], to=FLOAT),
            node("Mul", ["number", "little"], ["part"]),
            node("Add", ["sum", "part"], ["shifted"]),
        ]
    inner += [
        node("Clip", ["shifted" if numbered else "sum", "low", "high"], ["next"]),
        node("Less", ["trip", "stop"], ["on"]) if stops else node("Identity", ["holds"], ["on"]),
    ]
    carried = ("now", "keys", "values")
    body = helper.make_graph(
        inner,
        "body",
        [value("trip", INTEGER, []), value("holds", CONDITION, [])]
        + [value(name, FLOAT, None) for name in carried],
        [value("on", CONDITION, [])]
        + [value(name, FLOAT, None) for name in ("next", "all keys", "all values", "next")],
    )
    nodes = [
        node("Loop", ["trips", "", "state", "k0", "v0"],
             ["final", "k1", "v1", "states"], body=body, name="decoder"),
    ]  # fmt: skip
    outputs = ["final", "k1", "v1", "states"]
    if behind:
        nodes.append(node("MatMul", ["states", "wo"], ["y"]))
        outputs = ["final", "k1", "y"]
    inputs = [value("state", FLOAT, [batch, 1, WIDTH])]
    inputs += [value(name, FLOAT, [batch, start, WIDTH]) for name in ("k0", "v0")]
    inputs += [value("trips", INTEGER, [])] if trips is None else []
    inputs += [value("stop", INTEGER, [])] if stops else []
    known: dict[str, Any] = {
        name: weights(WIDTH, WIDTH, seed=i, scale=0.15) for i, name in enumerate(LAYERS)
    }
    known |= {"split": np.array([0, -1, HEADS, WIDTH // HEADS]), "merge": np.array([0, 1, WIDTH])}
    known |= {"low": np.float32(-2), "high": np.float32(2), "little": np.float32(1e-3)}
    known["half"] = np.float32(0.5)
    known |= {} if trips is None else {"trips": np.array(trips)}
    graph = helper.make_graph(
        nodes,
        "attending",
        inputs,
        [value(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def feeds_of(model: onnx.ModelProto, seed: int = 0, **sizes: int) -> dict[str, Array]:
    """Inputs of such a model; ``sizes``: those of free dimensions, and the values of ``trips`` and
    ``stop``."""
    rng, actual = np.random.default_rng(seed), {}
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        if info.name in sizes:
            actual[info.name] = np.array(sizes[info.name])
        else:
            actual[info.name] = np.asarray(rng.normal(size=shape), np.float32)
    return actual
