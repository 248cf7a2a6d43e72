"""Export rule of nodes that came from ONNX as they are."""

from __future__ import annotations

import onnx

from quantglow.frontend.export.opsets import at_opset, opset_for
from quantglow.frontend.export.writer import Value, Writer, export_rule, identity
from quantglow.frontend.nodes.values import array_of
from quantglow.frontend.reading.proto import opsets_of
from quantglow.frontend.resolvers.external import renamed
from quantglow.ops.external import External


@export_rule(External)
def external(node: External, w: Writer) -> Value:
    """The ONNX node itself; all its outputs are written together."""
    key = (node.model, node.args)
    if key not in w.parts:
        w.parts[key] = write_part(node, w)
    return Value(w.parts[key][node.output], identity(node.type.rank))


def write_part(node: External, w: Writer) -> list[str]:
    """Write the node of the model, as the opset that is written has it; the values of its
    outputs."""
    source = onnx.ModelProto.FromString(node.model)
    w.require(opset_for(source, w.opset))
    proto = at_opset(source, w.opset)
    args = zip(source.graph.input, node.args, strict=True)
    results = {name for part in proto.graph.node for name in part.output if name}
    names = {name: w.number(name) for name in results}
    names |= {info.name: w.stored(arg) for info, arg in args}
    for tensor in proto.graph.initializer:
        names[tensor.name] = w.constant(array_of(tensor), tensor.name)
    w.nodes += [renamed(part, names) for part in proto.graph.node]
    w.domains |= {name: version for name, version in opsets_of(proto).items() if name}
    return [names[output.name] for output in source.graph.output]
