"""Refuses loops whose results fill the memory for certain, in whatever runtime they run.

A Loop stacks a value of each trip.  onnxruntime keeps those values apart until the last trip, and
ends the process where there is no room for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx
from onnx import numpy_helper

from quantglow.frontend.budget import Meter
from quantglow.frontend.reading.proto import all_nodes, graphs_of

RESULT_NBYTES = 256
"""Bytes that onnxruntime allocates for the smallest tensor."""

STANDARD = ("", "ai.onnx")
"""The names of the domain of ONNX's operators."""

Constants = Mapping[str, onnx.TensorProto]


def check_loops(proto: onnx.ModelProto) -> None:
    """Raise ``ImportBudgetError`` for a Loop that stacks more than the import's budget.

    Only known numbers of trips count, and conditions that never end the loop.
    """
    loops = [n for n in all_nodes(proto.graph.node) if n.op_type == "Loop" and n.domain in STANDARD]
    if not loops:
        return
    meter, constants = Meter(), dict(constants_of(proto))
    for node in loops:
        stacked = len(node.output) - max(len(node.input) - 2, 0)
        trips = sure_trips(node, constants) if stacked > 0 else 0
        if trips * stacked * RESULT_NBYTES > meter.budget.nbytes:
            meter.node = node
            count = "without end" if math.isinf(trips) else f"{trips:.0f} times"
            raise meter.exceeded("nbytes", f"the loop runs {count} and keeps a result of each trip")


def constants_of(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Names and values of initializers and Constant nodes, of subgraphs, too."""
    for graph in graphs_of(proto):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in STANDARD:
                values = [a.t for a in node.attribute if a.name == "value"]
                yield from zip(node.output, values, strict=False)


def sure_trips(node: onnx.NodeProto, constants: Constants) -> float:
    """The number of trips; 0 where it is computed, or where a condition may end the loop."""
    given, holds = (*node.input, "", "")[:2]
    bodies = [a.g for a in node.attribute if a.name == "body"]
    if not bodies or (holds and not scalar(holds, constants)) or may_end(bodies[0], constants):
        return 0
    return max(scalar(given, constants), 0) if given else math.inf


def may_end(body: onnx.GraphProto, constants: Constants) -> bool:
    """Whether the condition after a trip is anything but true or the condition before it."""
    if not body.output or len(body.input) < 2:
        return True
    made = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while (node := made.pop(name, None)) and node.op_type == "Identity":
        name = next(iter(node.input), "")
    return name != body.input[1].name and not scalar(name, constants)


def scalar(name: str, constants: Constants) -> int:
    """The first element of a constant; 0 where the value is not known."""
    tensor = constants.get(name)
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return 0
    if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL):
        return 0
    try:
        values = numpy_helper.to_array(tensor).reshape(-1)
    except (TypeError, ValueError):
        return 0
    return int(values[0]) if values.size else 0
