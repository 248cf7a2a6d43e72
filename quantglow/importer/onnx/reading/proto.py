"""Parts of a ``ModelProto``: nodes, tensors and operator sets, of subgraphs and functions, too.

``infer`` runs ONNX's shape inference on a whole model, without a crash that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quantglow.support.errors import ModelError

OLDEST_OPSET = 7
"""Oldest version of the standard operators that is imported."""

MAX_NBYTES = 2**31 - 1
"""Protobuf's own limit for one message: of all weights, wherever they are stored."""

TOO_LARGE = "the model and its weights are larger than 2 GiB; split the model"

PROSE = frozenset({"doc_string", "metadata_props", "producer_name", "producer_version"})
"""Fields that are for people: texts in any encoding."""

UNCHECKED = frozenset(
    {"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"}
)
"""Operators whose inference reads the type of an operand that may have none.  In onnx 1.23, that
ends the process."""


def main_opset(proto: onnx.ModelProto) -> int:
    """The version of the standard operators; 1 where the model does not say."""
    return opset_versions(proto).get("", 1)


def opset_versions(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Version by domain; the standard domain is called ``""``."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and attribute tensors of the graph, its subgraphs and the local functions."""
    yield from _graph_tensors(proto.graph)
    for attribute in (a for node in every_node(proto) for a in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for graph in (attribute.g, *attribute.graphs):
            yield from _graph_tensors(graph)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def every_node(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the graph and of the local functions, with those of their subgraphs."""
    yield from all_nodes(proto.graph.node)
    for function in proto.functions:
        yield from all_nodes(function.node)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and, depth first, those of their subgraphs, however deep."""
    waiting = [iter(nodes)]
    while waiting:
        if (node := next(waiting[-1], None)) is None:
            waiting.pop()
            continue
        yield node
        graphs = [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]
        waiting.extend(iter(graph.node) for graph in reversed(graphs))


def clear_notes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Clear the texts for people in nodes and their subgraphs."""
    for node in all_nodes(nodes):
        node.ClearField("doc_string")
        node.ClearField("metadata_props")


def all_names(proto: Message) -> Iterator[str | bytes]:
    """Names of values, nodes, operators, domains, dimensions and files, at any depth."""
    waiting: list[Any] = [proto]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):  # to list its fields would copy its data
            yield message.name
            waiting.extend(message.external_data)
            continue
        for field, value in message.ListFields():
            if field.name in PROSE:
                continue
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                waiting.extend([value] if isinstance(value, Message) else value)
            elif field.type == FieldDescriptor.TYPE_STRING:
                yield from [value] if isinstance(value, str | bytes) else value


def iterate_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and its subgraphs."""
    yield proto.graph
    for node in all_nodes(proto.graph.node):
        for attribute in node.attribute:
            yield from (g for g in (attribute.g, *attribute.graphs) if g.node)


def decode(data: bytes, origin: str) -> onnx.ModelProto:
    """The model in these bytes.  Raises ``ModelError``."""
    if not data:
        raise ModelError(f"{origin}: is empty. Remedy: export the model again.")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{origin}: is no ONNX file, or is truncated: {error}. "
            "Remedy: export or copy the model again; what a compiled model's save wrote is for "
            "quantglow.load."
        ) from None
    return proto


def check_open(model: onnx.ModelProto) -> None:
    """Raise ``ValidationError`` for a model that is not valid.  Ends may have no shape, which
    ONNX wants."""
    ends = (*model.graph.input, *model.graph.output)
    tensors = [end.type.tensor_type for end in ends if end.type.HasField("tensor_type")]
    if not all(tensor.HasField("shape") for tensor in tensors):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for end in (*copy.graph.input, *copy.graph.output):
            if end.type.HasField("tensor_type"):
                end.type.tensor_type.shape.SetInParent()
        model = copy
    onnx.checker.check_model(model)


def infer(
    model: onnx.ModelProto,
    *,
    strict: bool = False,
    data_prop: bool = False,
    check_type: bool = False,
) -> onnx.ModelProto:
    """The model with the types of its values, as far as they are known.

    Raises ``InferenceError`` and what else is in ``INFERENCE_FAILURES``.

    ``strict``: raise ``InferenceError`` for operands that do not fit.  ``data_prop``: compute small
    integers that decide shapes.  ``check_type``: check element types; values without one fit.
    """
    names = {n for node in every_node(model) if node.op_type in UNCHECKED for n in node.input}
    if names:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for graph in iterate_graphs(copy):
            _give_types(graph, names)
        model = copy
    try:
        return onnx.shape_inference.infer_shapes(model, check_type, strict, data_prop)
    except ValueError as error:  # an element type that ONNX does not have
        raise onnx.shape_inference.InferenceError(str(error)) from error


def _give_types(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Declare values of a graph without a type, if it has them: with an empty type, which any
    inferred one replaces.
    """
    results = {name for node in graph.node for name in node.output}
    infos = (*graph.input, *graph.value_info, *graph.output)
    for info in infos:
        if info.name in names:
            info.type.SetInParent()
    for name in sorted(results.intersection(names) - {info.name for info in infos}):
        graph.value_info.add(name=name).type.SetInParent()
