"""Models of float32 that are changed to declare other float types."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper, numpy_helper

CODES = {
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16,
}


def with_casts(model: onnx.ModelProto, declared: Mapping[str, str]) -> onnx.ModelProto:
    """Inputs and outputs of these types around a model of float32, with a Cast at each."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    names = {name: f"{name}:inner" for name in declared}
    rename(proto.graph, names)
    inputs, outputs = ([*ends] for ends in (proto.graph.input, proto.graph.output))
    first = [cast(e, names[e.name], TensorProto.FLOAT, True) for e in inputs if e.name in declared]
    last = [
        cast(e, names[e.name], CODES[declared[e.name]], False)
        for e in outputs
        if e.name in declared
    ]
    for end in (*inputs, *outputs):
        if end.name in declared:
            end.type.tensor_type.elem_type = CODES[declared[end.name]]
    nodes = [*first, *proto.graph.node, *last]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def cast(end: onnx.ValueInfoProto, inner: str, to: int, enters: bool) -> onnx.NodeProto:
    source, target = (end.name, inner) if enters else (inner, end.name)
    return helper.make_node("Cast", [source], [target], to=to)


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values wherever nodes read or compute them, branches included."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            rename(attribute.g, names)
    for named in (*graph.value_info, *graph.initializer):
        named.name = names.get(named.name, named.name)


def all_of(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """Inputs, outputs and weights in another type, as converters to float16 write them."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    numpy_type = helper.tensor_dtype_to_np_dtype(CODES[kind])
    for end in (*proto.graph.input, *proto.graph.output):
        if end.type.tensor_type.elem_type == TensorProto.FLOAT:
            end.type.tensor_type.elem_type = CODES[kind]
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(numpy_type)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto
