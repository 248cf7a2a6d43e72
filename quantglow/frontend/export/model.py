"""A Graph, float or int8, as a standard ONNX model: quantized values as QuantizeLinear and
DequantizeLinear pairs around the float operators (QDQ)."""

from __future__ import annotations

import os

import onnx

from quantglow.errors import ModelError
from quantglow.files import writing
from quantglow.frontend.export.border import declare
from quantglow.frontend.export.external import check_origins
from quantglow.frontend.export.writer import (
    ON_DEMAND,
    Value,
    Writer,
    export_rule,
    final_names,
    identity,
    output_value,
    rule_of,
)
from quantglow.frontend.resolvers.external import renamed
from quantglow.graph.graph import Graph
from quantglow.graph.node import Input, Node
from quantglow.types import TensorType

LARGEST_NBYTES = 2**31 - 2**24
"""Weights of an ONNX model: one protobuf message holds less than 2 GiB with all the rest."""


def export_onnx(graph: Graph, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
    """The graph as an ONNX model (opset 18, newer where an operator needs it), written to
    ``path`` if given.

    Inputs and outputs keep names, shapes and layouts; values keep their names as far as they are
    free.  Activations are int8 between QuantizeLinear and DequantizeLinear, weights int8 behind a
    per-channel DequantizeLinear, biases int32 behind one.  A runtime gives the integers of the
    interpreter up to one step, where float rounding decides a tie otherwise.

    Raises ``ModelError`` for operators of lowered graphs, and for weights of 2 GB or more.
    """
    check_exportable(graph)
    writer = Writer()
    for node in graph.nodes:
        writer.write(node)
    proto = assembled(writer, graph)
    onnx.checker.check_model(proto)
    if path is not None:
        with writing(path) as temporary:
            temporary.write_bytes(proto.SerializeToString())
    return proto


@export_rule(Input)
def graph_input(node: Input, w: Writer) -> Value:
    return Value(w.number(node.name), identity(node.type.rank))


def check_exportable(graph: Graph) -> None:
    for node in graph.nodes:
        if not is_exportable(node):
            raise ModelError(
                f"{node!r} cannot be written as ONNX: there is no rule for it. "
                "Remedy: export the graph as it was before lowering."
            )


def is_exportable(node: Node) -> bool:
    """Whether ONNX has a form for the operator."""
    return rule_of(type(node)) is not None or isinstance(node, ON_DEMAND)


def assembled(writer: Writer, graph: Graph) -> onnx.ModelProto:
    """The model of everything written."""
    if sum(array.nbytes for array in writer.initializers.values()) > LARGEST_NBYTES:
        raise ModelError("the weights need more than one 2 GB ONNX file. Remedy: quantize them.")
    taken = {writer.stored(node) for node in graph.inputs}
    # A name computed once may be listed as two outputs.
    outputs = {
        output_value(writer, name, node, taken): name for name, node in dict.fromkeys(graph.outputs)
    }
    names = {"": "", **final_names(writer, graph, outputs)}
    nodes = [renamed(written, names) for written in writer.nodes]
    for written in nodes:
        written.name = next(filter(None, written.output))
    arrays = writer.initializers.items()
    made = onnx.helper.make_graph(
        nodes,
        "quantglow",
        [value_info(node.name, node.type) for node in graph.inputs],
        [value_info(name, node.type) for name, node in graph.outputs],
        [onnx.numpy_helper.from_array(array, names[name]) for name, array in arrays],
    )
    declare(made, graph.declared)
    check_origins(writer)
    domains = {"": writer.opset, **writer.domains}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    proto = onnx.helper.make_model(
        made, opset_imports=opsets, ir_version=version, producer_name="quantglow"
    )
    onnx.helper.set_model_props(proto, {"quantglow.source_hash": graph.source_hash})
    return proto


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    element = onnx.helper.np_dtype_to_tensor_dtype(kind.dtype.numpy)
    return onnx.helper.make_tensor_value_info(name, element, kind.shape)
