"""Reductions, and operators that find the largest element."""

from __future__ import annotations

from typing import Any

from tests.generators.onnx_models.drawing import INTEGER, Drawing, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import axes_of, axis_of, positive, scores

REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum"),
)
OF_INTEGERS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")


@draws(*REDUCTIONS, often=0.7)
def reduction(d: Drawing) -> object:
    op = d.choose(REDUCTIONS)
    if op in OF_INTEGERS and d.chance(0.2):
        return reduced(d, op, d.of((INTEGER,)))
    x = d.floats()
    return reduced(d, op, positive(d, x) if op == "ReduceLogSum" else x)


def reduced(d: Drawing, op: str, x: Value) -> object:
    axes = axes_of(d, x)
    inputs: dict[str, Any] = {"axes": axes} if axes or d.chance(0.5) else {}
    if not axes and "axes" in inputs and d.opset < 18:
        del inputs["axes"]
    if not axes and d.chance(0.3):
        inputs |= {"noop_with_empty_axes": 1}
    return d.node(op, x, keepdims=d.integer(0, 1), **inputs)


@draws("ArgMax", "ArgMin")
def place(d: Drawing) -> object:
    x = scores(d, 1, 2, 3, 4)
    options = {"keepdims": (0, 1)} | ({"select_last_index": (0, 1)} if d.opset >= 12 else {})
    return d.node(d.choose(("ArgMax", "ArgMin")), x, axis=axis_of(d, x), **d.some(options))


@draws("TopK", often=2)
def largest(d: Drawing) -> object:
    x = scores(d, 1, 2, 3, 4)
    axis = axis_of(d, x)
    count = d.integer(1, x.shape[axis])
    if d.opset < 10:
        return d.node("TopK", x, outputs=2, axis=axis, k=count)
    return d.node("TopK", x, outputs=2, K=[count], axis=axis, **d.some({"largest": (0, 1)}))
