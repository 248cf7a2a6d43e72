"""Checks of shapes in models for onnxruntime, which lets some of its kernels read beyond them.

In front of the operands of ``kernel_guards.KERNEL_GUARDS`` go nodes that raise an error where a
check fails, and else return the operand: onnxruntime itself makes them while it runs, and a model
whose shapes are known stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from quantglow.export.onnx.compatibility import copy_shared_results, name_left_out_results
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.reading.proto import all_nodes, infer, iterate_graphs, main_opset
from quantglow.ort.kernel_guards import (
    KERNEL_GUARDS,
    Dims,
    ElementsCheck,
    OperandCheck,
    RankCheck,
    RowsCheck,
    ScalarCheck,
    ScalesCheck,
    SizesCheck,
)
from quantglow.support.arrays import Array

SAFE_RESIZE = 18
"""Opset since which onnxruntime compares the lengths of scales with ranks."""

RESIZE_BY_REGION = 11
"""Opset since which a region comes before the scales."""

AXES_AS_INPUT = 13
"""Opset since which the axes of Unsqueeze are an operand."""


def guard_model(model: bytes) -> bytes:
    """The model, with a check where a wrong shape would end the process, and with results that
    onnxruntime takes for granted."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:  # onnxruntime says so
        return model
    is_changed = name_left_out_results(proto) | copy_shared_results(proto)
    if any(_has_checks(node) for node in all_nodes(proto.graph.node)):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        _add_guards(proto.graph, _known_shapes(copy), {}, main_opset(proto))
    elif not is_changed:
        return model
    return bytes(proto.SerializeToString())


def _has_checks(node: onnx.NodeProto) -> bool:
    """Whether the table has checks of a node's operands."""
    guard = KERNEL_GUARDS.get(node.op_type)
    return guard is not None and bool(guard.checks)


def _known_shapes(proto: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with the shapes that follow from its inputs, not those that it declares."""
    for graph in iterate_graphs(proto):
        graph.ClearField("value_info")
        ends = (*graph.output, *(() if graph is proto.graph else graph.input))
        for value in ends:
            value.type.tensor_type.ClearField("shape")
    with suppress(*INFERENCE_FAILURES):
        return infer(proto).graph
    return proto.graph


def _add_guards(
    graph: onnx.GraphProto, typed: onnx.GraphProto, around: Mapping[str, Dims], opset: int
) -> None:
    """Put guards into a graph and its subgraphs; ``typed`` is the same with shapes of values."""
    shapes = {**around, **_value_shapes(typed)}
    nodes = []
    for node, same in zip(graph.node, typed.node, strict=True):
        for attribute, equal in zip(node.attribute, same.attribute, strict=True):
            if attribute.HasField("g"):
                _add_guards(attribute.g, equal.g, shapes, opset)
                if node.op_type == "Loop":
                    _guard_condition(attribute.g, shapes | _value_shapes(equal.g), opset)
        for check in _operand_checks(node, shapes, opset):
            x = [*node.input, *[""] * check.position][check.position]
            if x and not check.is_met(shapes.get(x)):
                node.input[check.position] = f"{node.output[0]}:operand{check.position}"
                nodes += guard_nodes(check, x, node.input[check.position], opset)
        nodes.append(node)
    rebuilt = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(rebuilt.node)


def _guard_condition(body: onnx.GraphProto, shapes: Mapping[str, Dims], opset: int) -> None:
    """Check that the condition of the next trip, a result of a Loop's body, has one element.

    The condition that a body is given has one, because that of the trip before has.
    """
    check, makers = ScalarCheck(0), {node.output[0]: node for node in body.node if node.output}
    inputs = [value.name for value in body.input[1:2]]
    name = body.output[0].name if body.output else ""
    first = name
    while first in makers and makers[first].op_type == "Identity":
        first = makers.pop(first).input[0]
    if name and first not in inputs and not check.is_met(shapes.get(name)):
        body.output[0].name = f"{name}:operand0"
        body.node.extend(guard_nodes(check, name, body.output[0].name, opset))


def _value_shapes(graph: onnx.GraphProto) -> dict[str, Dims]:
    """The shapes of values, as far as their ranks are known."""
    shapes: dict[str, Dims] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            sizes = (d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
            shapes[value.name] = tuple(sizes)
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _operand_checks(
    node: onnx.NodeProto, shapes: Mapping[str, Dims], opset: int
) -> Iterator[OperandCheck]:
    """The checks of the operands of a node."""
    guard = KERNEL_GUARDS.get(node.op_type)
    domain = "" if node.domain == "ai.onnx" else node.domain
    for check in () if guard is None or guard.domain != domain else guard.checks:
        match check:
            case RowsCheck():
                yield from map(ElementsCheck, range(len(node.input) if len(node.input) > 1 else 0))
            case ScalesCheck(position=position):
                if count := _number_of_scales(node, shapes, opset):
                    yield RankCheck(position, count)
            case _:
                yield check


def guard_nodes(check: OperandCheck, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
    """``y = x``, or an error where the check fails."""
    match check:
        case RankCheck(rank=rank, exact=True):  # Transpose checks the rank
            return [helper.make_node("Transpose", [x], [y], perm=[*range(rank)])]
        case RankCheck(rank=rank):  # Unsqueeze checks its axis
            return _axis_nodes(rank, x, y, opset)
        case SizesCheck(shapes=shapes):
            return _sizes_nodes(shapes, x, y)
        case ElementsCheck():
            return _first_element_nodes(x, y)
        case ScalarCheck():
            shape = constant(f"{y}:shape", np.array([], np.int64))
            return [shape, helper.make_node("Reshape", [x, f"{y}:shape"], [y])]


def _axis_nodes(axis: int, x: str, y: str, opset: int) -> list[onnx.NodeProto]:
    """A new axis behind ``axis`` others, taken off again."""
    node, axes, wider = helper.make_node, [axis], f"{y}:wider"
    if opset < AXES_AS_INPUT:
        widen = node("Unsqueeze", [x], [wider], axes=axes)
        return [widen, node("Squeeze", [wider], [y], axes=axes)]
    axes_node = node("Constant", [], [f"{y}:axes"], value_ints=axes)
    widen = node("Unsqueeze", [x, f"{y}:axes"], [wider])
    return [axes_node, widen, node("Squeeze", [wider, f"{y}:axes"], [y])]


def _sizes_nodes(shapes: tuple[tuple[int, ...], ...], x: str, y: str) -> list[onnx.NodeProto]:
    """A Reshape to each of the shapes in turn, the last of which is the operand's own."""
    nodes = list[onnx.NodeProto]()
    for number, shape in enumerate(shapes):
        sizes, filled = f"{y}:sizes{number}", f"{y}:filled{number}"
        nodes += [
            constant(sizes, np.array(shape, np.int64)),
            helper.make_node("Reshape", [x, sizes], [filled]),
        ]
        x = filled
    return [*nodes, helper.make_node("Identity", [x], [y])]


def _first_element_nodes(x: str, y: str) -> list[onnx.NodeProto]:
    """A Gather of the first element, which raises where there is none, and the operand."""
    node, flat, first, always = helper.make_node, f"{y}:flat", f"{y}:first", f"{y}:always"
    return [
        constant(f"{y}:every", np.array([-1])),
        constant(f"{y}:index", np.array(0)),
        constant(always, np.array(True)),
        node("Reshape", [x, f"{y}:every"], [flat]),
        node("Gather", [flat, f"{y}:index"], [first]),
        node("Where", [always, x, first], [y]),
    ]


def constant(name: str, value: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _number_of_scales(node: onnx.NodeProto, shapes: Mapping[str, Dims], opset: int) -> int | None:
    """The number of scales; None if it is not known, checked, or if there are sizes instead."""
    if node.op_type not in ("Resize", "Upsample") or opset >= SAFE_RESIZE:
        return None
    for attribute in node.attribute:
        if attribute.name == "scales":
            return len(attribute.floats)
    position = 2 if node.op_type == "Resize" and opset >= RESIZE_BY_REGION else 1
    dims = shapes.get(node.input[position]) if len(node.input) > position else None
    return dims[0] if dims and len(dims) == 1 else None
