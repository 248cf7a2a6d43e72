"""``export_onnx``: a Graph, float or int8, as a standard ONNX model.

Quantized values are QuantizeLinear and DequantizeLinear pairs around the float operators (QDQ).  At
inputs and outputs, the float types that a model declares are cast from and to float32.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

import onnx

from quantglow.export.onnx.compatibility import copy_shared_results, name_left_out_results
from quantglow.export.onnx.writer import (
    FIRST_OPSET,
    ON_DEMAND,
    OnnxValue,
    OnnxWriter,
    export_rule,
    final_names,
    find_rule,
    fresh_name,
    identity,
    output_value,
)
from quantglow.importer.onnx.nodes.values import OTHER_FLOATS, is_container
from quantglow.importer.onnx.reading.proto import check_open
from quantglow.importer.onnx.resolvers.external import opaque_types, rename
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.signature import PortDim, Signature, is_symbol
from quantglow.ir.symbolic.size import Size
from quantglow.ir.types import TensorType
from quantglow.support.errors import ModelError
from quantglow.support.files import writing
from quantglow.transforms.size_sources import SizeSource, in_order_of_sizes, size_sources

CODES = {name: code for code, name in OTHER_FLOATS.items()}
FLOAT = onnx.TensorProto.FLOAT

LARGEST_NBYTES = 2**31 - 2**24
"""Weights of an ONNX model: one protobuf message holds less than 2 GiB with all the rest."""


def export_onnx(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    signature: Signature | None = None,
) -> onnx.ModelProto:
    """The graph as an ONNX model (opset 18, newer where an operator needs it), written to
    ``path`` if given.

    Inputs and outputs keep names, shapes and layouts; values keep their names as far as they are
    free.  Activations are int8 between QuantizeLinear and DequantizeLinear, weights int8 behind a
    per-channel DequantizeLinear, biases int32 behind one.  A runtime gives the integers of the
    interpreter up to one step, where float rounding decides a tie otherwise.

    Free sizes are read from the shapes of inputs, and late ones from those of the results that
    decide them.  ``signature`` has names for the dimensions of inputs and outputs that stay free.

    Raises ``ModelError`` for operators of lowered graphs, for sizes that no value of the graph has,
    and for weights of 2 GB or more.
    """
    _check_exportable(graph)
    writer = write(graph)
    proto = _assemble(writer, graph)
    if signature is not None:
        _name_dimensions(proto, signature)
    name_left_out_results(proto)
    copy_shared_results(proto)
    check_open(proto)
    if path is not None:
        with writing(path) as temporary:
            temporary.write_bytes(proto.SerializeToString())
    return proto


def write(graph: Graph) -> OnnxWriter:
    """All nodes of a graph, in the newest opset that one of them needs."""
    opset, sizes = FIRST_OPSET, defaultdict[Node, list[SizeSource]](list)
    for source in size_sources(graph).values():
        sizes[source.node].append(source)
    nodes = [node for node in in_order_of_sizes(graph) if not isinstance(node, Constant)]
    while True:
        writer = OnnxWriter(opset)
        for node in nodes:
            writer.write(node)
            for source in sizes.get(node, ()):
                writer.dimensions[source.symbol] = writer.stored(node), source.axis
        if writer.opset == opset:
            return writer
        opset = writer.opset


@export_rule(Input)
def graph_input(node: Input, w: OnnxWriter) -> OnnxValue:
    return OnnxValue(w.number(node.name), identity(node.type.rank))


def _check_exportable(graph: Graph) -> None:
    for node in graph.nodes:
        if not is_exportable(node):
            raise ModelError(
                f"{node!r} cannot be written as ONNX: there is no rule for it. "
                "Remedy: export the graph as it was before lowering."
            )


def is_exportable(node: Node) -> bool:
    """Whether ONNX has a form for the operator."""
    return find_rule(type(node)) is not None or isinstance(node, ON_DEMAND)


def _assemble(writer: OnnxWriter, graph: Graph) -> onnx.ModelProto:
    """The model of everything written."""
    if sum(array.nbytes for array in writer.initializers.values()) > LARGEST_NBYTES:
        raise ModelError("the weights need more than one 2 GB ONNX file. Remedy: quantize them.")
    values = {writer.stored(node) for node in graph.inputs}
    # A name computed once may be listed as two outputs.
    outputs = {
        output_value(writer, name, node, values): name
        for name, node in dict.fromkeys(graph.outputs)
    }
    names = {"": "", **final_names(writer, graph, outputs)}
    nodes = [rename(written, names) for written in writer.nodes]
    for written in nodes:
        written.name = next(filter(None, written.output))
    arrays, types = writer.initializers.items(), opaque_types(graph.nodes)
    onnx_graph = onnx.helper.make_graph(
        nodes,
        "quantglow",
        [_declaration(node.name, node, types) for node in graph.inputs],
        [_declaration(name, node, types) for name, node in graph.outputs],
        [onnx.numpy_helper.from_array(array, names[name]) for name, array in arrays],
    )
    _declare(onnx_graph, graph.declared)
    domains = {"": writer.opset, **writer.domains}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    proto = onnx.helper.make_model(
        onnx_graph, opset_imports=opsets, ir_version=version, producer_name="quantglow"
    )
    onnx.helper.set_model_props(proto, {"quantglow.source_hash": graph.source_hash})
    return proto


def _declaration(
    name: str, node: Node, types: Mapping[Node, onnx.TypeProto]
) -> onnx.ValueInfoProto:
    """The declaration of an end; ``types``: those of opaque values."""
    if node in types:
        return onnx.ValueInfoProto(name=name, type=types[node])
    return value_info(name, node.type)


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    """The declaration; a free size has the name of its symbol, if it is one."""
    element = onnx.helper.np_dtype_to_tensor_dtype(kind.dtype.numpy)
    dims = [_dimension_symbol(size) if isinstance(size, Size) else size for size in kind.shape]
    info: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(name, element, dims)
    return info


def _name_dimensions(model: onnx.ModelProto, signature: Signature) -> None:
    """Name the free dimensions of inputs and outputs as the signature does."""
    ends = zip((*model.graph.input, *model.graph.output), signature.ports, strict=True)
    for info, port in ends:
        kind = info.type.tensor_type
        if port.dims is not None and not is_container(info.type) and not kind.HasField("shape"):
            kind.shape.dim.extend(_declared_dim(dim) for dim in port.dims)
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            symbol = port.dims[axis] if port.dims and axis < len(port.dims) else None
            if not dim.HasField("dim_value") and is_symbol(symbol):
                dim.dim_param = str(symbol)


def _declared_dim(dim: PortDim) -> onnx.TensorShapeProto.Dimension:
    """A dimension of a late result as the model declares it."""
    if isinstance(dim, int):
        return onnx.TensorShapeProto.Dimension(dim_value=dim)
    return onnx.TensorShapeProto.Dimension(dim_param=dim if is_symbol(dim) else None)


def _dimension_symbol(size: Size) -> str | None:
    """The name of a free size that is a symbol."""
    text = str(size.expression)
    return text if text.isidentifier() else None


def _declare(graph: onnx.GraphProto, declared: Mapping[str, str]) -> None:
    """Give inputs and outputs of float32 their declared types, with a Cast at each."""
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    used |= {tensor.name for tensor in graph.initializer}
    first, last, names = [], [], dict[str, str]()
    for position, ends in enumerate((graph.input, graph.output)):
        for end in ends:
            kind = end.type.tensor_type
            if declared.get(end.name) not in CODES or kind.elem_type != FLOAT:
                continue
            names[end.name] = inner = fresh_name(f"{end.name}:float32", used)
            used.add(inner)
            kind.elem_type = code = CODES[declared[end.name]]
            if position:
                last.append(cast(inner, end.name, code))
            else:
                first.append(cast(end.name, inner, FLOAT))
    inside = [rename(node, names) for node in graph.node]
    for node in inside:
        node.name = next(filter(None, node.output))
    del graph.node[:]
    graph.node.extend([*first, *inside, *last])


def cast(source: str, target: str, code: int) -> onnx.NodeProto:
    node: onnx.NodeProto = onnx.helper.make_node("Cast", [source], [target], name=target, to=code)
    return node
