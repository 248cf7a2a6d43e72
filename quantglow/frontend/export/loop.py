"""Export rule of Loop: an ONNX Loop, whose body takes its elements by the number of the trip."""

from __future__ import annotations

import numpy as np
import onnx

from quantglow.frontend.export.writer import Value, Writer, export_rule, identity
from quantglow.graph.node import Node
from quantglow.ops.loop import Loop
from quantglow.types import DType

MOVES = ("Expand", "MaxPool", "Reshape", "Slice", "Transpose")
"""Operators behind which onnxruntime may move DequantizeLinear."""


@export_rule(Loop)
def loop(node: Loop, w: Writer) -> Value:
    """All results of a loop are written together."""
    key = (node.body, node.operands)
    if key not in w.loops:
        w.loops[key] = write_loop(node, w)
    return Value(w.loops[key][node.output], identity(node.type.rank))


def write_loop(node: Loop, w: Writer) -> list[str]:
    """Write an ONNX Loop; its results."""
    number, holds = w.number(f"{node.name}:trip"), w.number(f"{node.name}:holds")
    true = w.constant(np.array(True), f"{node.name}:true")
    start = true if not node.conditional else w.stored(node.carried[0])
    body = w.inside()
    given = [body.number(x.name) for x in node.body.inputs]
    body.held |= {
        x: {identity(x.type.rank): name} for x, name in zip(node.body.inputs, given, strict=True)
    }
    carried, last = len(node.carried), len(node.carried) + len(node.sliced)
    for name, x in zip(given[carried:last], node.sliced, strict=True):
        gather = onnx.helper.make_node("Gather", [read_inside(x, w), number], [name], axis=0)
        body.nodes.append(gather)
    for name, x in zip(given[last:], node.captured, strict=True):
        body.nodes.append(onnx.helper.make_node("Identity", [read_inside(x, w)], [name]))
    for inner in node.body.nodes:
        if inner not in node.body.inputs:
            body.write(inner)
    w.require(body.opset)
    ends = [body.emit("Identity", [body.stored(end)], end.name) for _, end in node.body.outputs]
    goes_on = body.emit("Identity", [ends[0] if node.conditional else true], f"{node.name}:on")
    condition = node.carried[0].type.shape if node.conditional else ()
    takes = [
        _info(number, DType.I64, ()),
        _info(holds, DType.BOOL, condition),
        *(_info(name, x.type.dtype) for name, x in zip(given, node.carried, strict=False)),
    ]
    made = zip(ends, node.body.outputs, strict=True)
    gives = [
        _info(goes_on, DType.BOOL, condition),
        *(_info(name, end.type.dtype) for name, (_, end) in made),
    ]
    graph = onnx.helper.make_graph(body.nodes, "body", takes, gives)
    results = [w.number(f"{node.name}:result") for _ in ends]
    trips = w.integers([node.trips], f"{node.name}:trips")
    inputs = [trips, start, *(w.stored(x) for x in node.carried)]
    w.nodes.append(onnx.helper.make_node("Loop", inputs, results, body=graph))
    return results


def read_inside(x: Node, w: Writer) -> str:
    """A value that a body reads from outside.

    onnxruntime moves DequantizeLinear behind a Slice or Reshape, and ends the process where the
    body of a loop reads that.
    """
    name = w.stored(x)
    is_moved = any(name in written.output and written.op_type in MOVES for written in w.nodes)
    return w.opaque(name, x.name) if x.type.dtype.is_float and is_moved else name


def _info(name: str, dtype: DType, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
    """A value of a body; its shape may be free, and is left out."""
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    return onnx.helper.make_tensor_value_info(name, element, shape)
