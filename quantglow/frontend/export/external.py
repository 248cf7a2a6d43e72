"""Export rule of nodes that came from ONNX as they are."""

from __future__ import annotations

import onnx

from quantglow.errors import ModelError
from quantglow.frontend.export.writer import Value, Writer, export_rule, identity
from quantglow.frontend.nodes.values import array_of
from quantglow.frontend.reading.proto import all_nodes, opsets_of
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
    """Write the node of the model; the values of its outputs."""
    proto = onnx.ModelProto.FromString(node.model)
    part = proto.graph.node[0]
    args = zip(proto.graph.input, node.args, strict=True)
    names = {name: w.number(name) for name in part.output if name}
    names |= {info.name: w.stored(arg) for info, arg in args}
    for tensor in proto.graph.initializer:
        names[tensor.name] = w.constant(array_of(tensor), tensor.name)
    w.nodes.append(renamed(part, names))
    w.origins.append((proto, node.name))
    return [names[output.name] for output in proto.graph.output]


def check_origins(w: Writer) -> None:
    """Raise ``ModelError`` if an operator means something else in the opset that is written."""
    for proto, name in w.origins:
        own = opsets_of(proto)
        for part in all_nodes(proto.graph.node):
            if part.domain:
                w.domains[part.domain] = own[part.domain]
            elif version_of(part.op_type, own[""]) != version_of(part.op_type, w.opset):
                raise ModelError(
                    f"{name!r} ({part.op_type}) is of opset {own['']}, the model is written in "
                    f"{w.opset}, where it changed. Remedy: convert the source with "
                    f"onnx.version_converter.convert_version(model, {w.opset})."
                )


def version_of(op_type: str, opset: int) -> int:
    """The opset in which the operator got the meaning it has in ``opset``."""
    return int(onnx.defs.get_schema(op_type, opset).since_version)
