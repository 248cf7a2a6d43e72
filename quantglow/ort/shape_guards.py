"""Checks of shapes in models for onnxruntime, which lets some of its kernels read beyond them.

onnxruntime refuses wrong ranks that it knows when it loads a model.  Others only show while it
runs, as those of values that a Loop carries; in 1.32, some kernels then end the process, those of
LSTM and GRU do so over empty sequences, that of FeatureVectorizer over inputs without rows, and
those of Loop and of SequenceAt and its like where a number of trips, a condition or a position is
empty.  In front of their operands go nodes that raise an error for them, and else return the
operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from quantglow.export.onnx.compatibility import copy_shared_results, name_left_out_results
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.reading.proto import all_nodes, infer, iterate_graphs, main_opset

Dims = tuple[int | None, ...]
"""A shape; None where a size is not known."""

SAFE_RESIZE = 18
"""Opset since which onnxruntime compares the lengths of scales with ranks."""

RESIZE_BY_REGION = 11
"""Opset since which a region comes before the scales."""

AXES_AS_INPUT = 13
"""Opset since which the axes of Unsqueeze are an operand."""


@dataclass(frozen=True)
class Need:
    """A rank that a kernel takes for granted of an operand; ``exact``, or at least so many axes."""

    position: int
    rank: int
    exact: bool = True

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has the rank."""
        if dims is None:
            return False
        return len(dims) == self.rank if self.exact else len(dims) >= self.rank

    def guard(self, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
        """``y = x``, or an error: Transpose checks the rank, and Unsqueeze its axis."""
        node, axes, wider = helper.make_node, [self.rank], f"{y}:wider"
        if self.exact:
            return [node("Transpose", [x], [y], perm=[*range(self.rank)])]
        if opset < AXES_AS_INPUT:
            widen = node("Unsqueeze", [x], [wider], axes=axes)
            return [widen, node("Squeeze", [wider], [y], axes=axes)]
        axes_node = node("Constant", [], [f"{y}:axes"], value_ints=axes)
        widen = node("Unsqueeze", [x, f"{y}:axes"], [wider])
        return [axes_node, widen, node("Squeeze", [wider, f"{y}:axes"], [y])]


@dataclass(frozen=True)
class Filled:
    """Sizes that a kernel takes for granted not to be 0: all but one, in each of ``shapes``.

    Reshape copies sizes that are 0 in its shape, and refuses to infer -1 if one of them is 0.
    """

    position: int
    shapes: tuple[tuple[int, ...], ...]

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has elements."""
        return dims is not None and all(dims)

    def guard(self, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
        """``y = x``, or an error."""
        nodes, node = [], helper.make_node
        for number, shape in enumerate(self.shapes):
            value = numpy_helper.from_array(np.array(shape, np.int64))
            sizes, filled = f"{y}:sizes{number}", f"{y}:filled{number}"
            nodes += [
                node("Constant", [], [sizes], value=value),
                node("Reshape", [x, sizes], [filled]),
            ]
            x = filled
        return [*nodes, node("Identity", [x], [y])]


@dataclass(frozen=True)
class Present:
    """An operand of any rank that a kernel takes for granted to have elements."""

    position: int

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has elements."""
        return dims is not None and all(dims)

    def guard(self, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
        """``y = x``, or an error: there is no first element."""
        node, flat, first, always = helper.make_node, f"{y}:flat", f"{y}:first", f"{y}:always"
        every, index, true = (
            numpy_helper.from_array(np.array(value)) for value in (np.array([-1]), 0, True)
        )
        return [
            node("Constant", [], [f"{y}:every"], value=every),
            node("Constant", [], [f"{y}:index"], value=index),
            node("Constant", [], [always], value=true),
            node("Reshape", [x, f"{y}:every"], [flat]),
            node("Gather", [flat, f"{y}:index"], [first]),
            node("Where", [always, x, first], [y]),
        ]


@dataclass(frozen=True)
class Single:
    """An operand of any rank whose first element a kernel reads without a look at its size."""

    position: int

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has one element."""
        return dims is not None and all(size == 1 for size in dims)

    def guard(self, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
        """``y = x`` as a scalar, or an error."""
        none = numpy_helper.from_array(np.array([], np.int64))
        shape = helper.make_node("Constant", [], [f"{y}:shape"], value=none)
        return [shape, helper.make_node("Reshape", [x, f"{y}:shape"], [y])]


Check = Need | Filled | Present | Single

NEEDS: dict[str, tuple[Check, ...]] = {
    "DFT": (Need(0, 1, exact=False),),
    "GRU": (Filled(0, ((-1, 0, 0), (0, 0, -1))),),
    "GridSample": (Need(0, 1, exact=False),),
    "LSTM": (Filled(0, ((-1, 0, 0),)),),
    "Loop": (Single(0), Single(1)),
    "Multinomial": (Need(0, 2),),
    "ReverseSequence": (Need(0, 2, exact=False),),
    "RoiAlign": (Need(0, 4), Need(1, 2), Need(2, 1)),
    "STFT": (Need(0, 1, exact=False), Need(2, 1)),
    "SequenceAt": (Single(1),),
    "SequenceErase": (Single(1),),
    "SequenceInsert": (Single(2),),
}
"""Needs that do not depend on other operands."""

GUARDED = frozenset({*NEEDS, "FeatureVectorizer", "Resize", "Upsample"})
"""Operators that have needs."""


def guarded(model: bytes) -> bytes:
    """The model, with a check where a wrong shape would end the process, and with results that
    onnxruntime takes for granted."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:  # onnxruntime says so
        return model
    is_changed = name_left_out_results(proto) | copy_shared_results(proto)
    if any(node.op_type in GUARDED for node in all_nodes(proto.graph.node)):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        with_guards(proto.graph, known_shapes(copy), {}, main_opset(proto))
    elif not is_changed:
        return model
    return bytes(proto.SerializeToString())


def known_shapes(proto: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with the shapes that follow from its inputs, not those that it declares."""
    for graph in iterate_graphs(proto):
        graph.ClearField("value_info")
        ends = (*graph.output, *(() if graph is proto.graph else graph.input))
        for value in ends:
            value.type.tensor_type.ClearField("shape")
    with suppress(*INFERENCE_FAILURES):
        return infer(proto).graph
    return proto.graph


def with_guards(
    graph: onnx.GraphProto, typed: onnx.GraphProto, around: Mapping[str, Dims], opset: int
) -> None:
    """Put guards into a graph and its subgraphs; ``typed`` is the same with shapes of values."""
    shapes = {**around, **shapes_of(typed)}
    nodes = []
    for node, same in zip(graph.node, typed.node, strict=True):
        for attribute, equal in zip(node.attribute, same.attribute, strict=True):
            if attribute.HasField("g"):
                with_guards(attribute.g, equal.g, shapes, opset)
                if node.op_type == "Loop":
                    guard_condition(attribute.g, shapes | shapes_of(equal.g), opset)
        for need in needs(node, shapes, opset):
            x = [*node.input, *[""] * need.position][need.position]
            if x and not need.is_met(shapes.get(x)):
                node.input[need.position] = f"{node.output[0]}:operand{need.position}"
                nodes += need.guard(x, node.input[need.position], opset)
        nodes.append(node)
    rebuilt = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(rebuilt.node)


def guard_condition(body: onnx.GraphProto, shapes: Mapping[str, Dims], opset: int) -> None:
    """Check that the condition of the next trip, a result of a Loop's body, has one element.

    The condition that a body is given has one, because that of the trip before has.
    """
    need, makers = Single(0), {node.output[0]: node for node in body.node if node.output}
    inputs = [value.name for value in body.input[1:2]]
    name = body.output[0].name if body.output else ""
    first = name
    while first in makers and makers[first].op_type == "Identity":
        first = makers.pop(first).input[0]
    if name and first not in inputs and not need.is_met(shapes.get(name)):
        body.output[0].name = f"{name}:operand0"
        body.node.extend(need.guard(name, body.output[0].name, opset))


def shapes_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    """The shapes of values, as far as their ranks are known."""
    shapes: dict[str, Dims] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            sizes = (d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
            shapes[value.name] = tuple(sizes)
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def needs(node: onnx.NodeProto, shapes: Mapping[str, Dims], opset: int) -> Iterator[Check]:
    """The ranks and sizes that onnxruntime's kernel of a node takes for granted."""
    if (node.domain, node.op_type) == ("ai.onnx.ml", "FeatureVectorizer") and len(node.input) > 1:
        yield from map(Present, range(len(node.input)))
    if node.domain not in ("", "ai.onnx"):
        return
    yield from NEEDS.get(node.op_type, ())
    if count := number_of_scales(node, shapes, opset):
        yield Need(0, count)


def number_of_scales(node: onnx.NodeProto, shapes: Mapping[str, Dims], opset: int) -> int | None:
    """The number of scales; None if it is not known, checked, or if there are sizes instead."""
    if node.op_type not in ("Resize", "Upsample") or opset >= SAFE_RESIZE:
        return None
    for attribute in node.attribute:
        if attribute.name == "scales":
            return len(attribute.floats)
    position = 2 if node.op_type == "Resize" and opset >= RESIZE_BY_REGION else 1
    dims = shapes.get(node.input[position]) if len(node.input) > position else None
    return dims[0] if dims and len(dims) == 1 else None
