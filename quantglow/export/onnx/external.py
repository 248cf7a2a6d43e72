"""Export of nodes that stay as the source has them, and of a Loop with another body.

Loop and body are joined by the names of the user's values: a node whose result the body computes is
dropped, and so is all that nothing reads any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from quantglow.export.onnx.compatibility import (
    at_opset,
    copy_shared_results,
    name_left_out_results,
    opset_for,
)
from quantglow.export.onnx.writer import (
    FIRST_OPSET,
    OnnxValue,
    OnnxWriter,
    export_rule,
    fresh_name,
    identity,
)
from quantglow.importer.onnx.nodes.values import tensor_array
from quantglow.importer.onnx.reading.canonicalization import sort_nodes
from quantglow.importer.onnx.reading.proto import (
    all_nodes,
    check_open,
    iterate_graphs,
    main_opset,
    opset_versions,
)
from quantglow.importer.onnx.resolvers.external import read_names, rename
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Trips
from quantglow.support.classes import cached_property


@export_rule(External)
def external(node: External, w: OnnxWriter) -> OnnxValue:
    """The ONNX node itself; all its outputs are written together."""
    key = (node.model, node.args)
    if key not in w.parts:
        w.parts[key] = _write_part(node, w)
    return OnnxValue(w.parts[key][node.output], identity(node.type.rank))


def _write_part(node: External, w: OnnxWriter) -> list[str]:
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
        names[tensor.name] = w.constant(tensor_array(tensor), tensor.name)
    w.nodes += [rename(part, names) for part in proto.graph.node]
    w.domains |= {name: version for name, version in opset_versions(proto).items() if name}
    return [names[output.name] for output in source.graph.output]


@dataclass(frozen=True)
class LoopBody:
    """The exported body of a Loop, and the names by which it is joined to the loop."""

    names: Trips
    model: bytes


def with_body(node: External, body: LoopBody) -> External:
    """A result of a Loop with another body, without operands that nothing reads then.

    Raises ``ModelError`` where the opset of the body has no form for a node of the loop.
    """
    protos = onnx.ModelProto.FromString(node.model), onnx.ModelProto.FromString(body.model)
    opset = opset_for(protos[0], max(FIRST_OPSET, main_opset(protos[1])))
    whole, inner = (at_opset(proto, opset) for proto in protos)
    model = _Joined(whole, inner).model(body.names)
    read = {name for each in model.graph.node for name in read_names(each)}
    pairs = [
        (info, arg)
        for info, arg in zip(whole.graph.input, node.args, strict=True)
        if info.name in read
    ]
    model.graph.input.extend(info for info, _ in pairs)
    name_left_out_results(model)
    copy_shared_results(model)
    check_open(model)
    content = model.SerializeToString(deterministic=True)
    return replace(node, model=content, args=tuple(arg for _, arg in pairs))


@dataclass(frozen=True, eq=False)
class _Joined:
    """The model of a Loop, and another body for it, whose names of values stay."""

    whole: onnx.ModelProto
    body: onnx.ModelProto

    @cached_property
    def used(self) -> set[str]:
        """The names in the model, and new ones."""
        return _names_in(self.whole)

    def apart(self, part: onnx.ModelProto) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """The nodes and weights of a part; all but its ends have names that are free."""
        ends = {end.name for end in (*part.graph.input, *part.graph.output)}
        results = [name for node in part.graph.node for name in node.output if name]
        results += [tensor.name for tensor in part.graph.initializer]
        names = {name: self.new(name) for name in results if name not in ends}
        nodes = [rename(node, names) for node in part.graph.node]
        for node in nodes:
            node.name = next(filter(None, node.output))
        tensors = []
        for tensor in part.graph.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = names.get(tensor.name, tensor.name)
            tensors.append(copy)
        return nodes, tensors

    def new(self, hint: str) -> str:
        """A name that nothing has."""
        name = fresh_name(hint, self.used)
        self.used.add(name)
        return name

    def loop(self, trips: Trips) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
        """The Loop with the nodes of the body, and the weights that these read."""
        loop = onnx.NodeProto()
        loop.CopyFrom(next(node for node in self.whole.graph.node if node.op_type == "Loop"))
        (graph,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
        inner, tensors = self.apart(self.body)
        old = {end.name: self.new(f"{end.name}:before") for end in self.body.graph.output}
        nodes = [_giving(node, old) for node in graph.node]
        ends = (trips.holds, *(carry.after for carry in trips.carried), *trips.stacked)
        for output, name in zip(graph.output, ends, strict=True):
            output.name = name or output.name
        del graph.node[:]
        graph.node.extend(_live([*nodes, *inner], [output.name for output in graph.output]))
        read = {name for node in graph.node for name in read_names(node)}
        read |= {output.name for output in graph.output}
        weights = [tensor for tensor in graph.initializer if tensor.name in read]
        del graph.initializer[:]
        graph.initializer.extend(weights)
        return loop, tensors

    def model(self, trips: Trips) -> onnx.ModelProto:
        """The model of the Loop with the body, without inputs."""
        loop, tensors = self.loop(trips)
        model = onnx.ModelProto()
        model.CopyFrom(self.whole)
        model.ir_version = max(self.whole.ir_version, self.body.ir_version)
        for field in ("node", "input", "initializer"):
            model.graph.ClearField(field)
        # Converters of versions may have put nodes beside the loop.
        nodes = [loop if node.op_type == "Loop" else node for node in self.whole.graph.node]
        model.graph.node.extend(_live(nodes, [output.name for output in model.graph.output]))
        read = {name for node in model.graph.node for name in read_names(node)}
        weights = (*self.whole.graph.initializer, *tensors)
        model.graph.initializer.extend(tensor for tensor in weights if tensor.name in read)
        versions = opset_versions(self.whole)
        for domain, version in opset_versions(self.body).items():
            versions[domain] = max(version, versions.get(domain, 0))
        del model.opset_import[:]
        model.opset_import.extend(onnx.helper.make_opsetid(*stamp) for stamp in versions.items())
        return sort_nodes(model)


def _giving(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """The node with other names for its results; itself if it has none of them."""
    if names.keys().isdisjoint(node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy


def _live(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that some output needs, in their order."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waiting, needed = list(outputs), set[int]()
    while waiting:
        number = makers.get(waiting.pop())
        if number is not None and number not in needed:
            needed.add(number)
            waiting += read_names(nodes[number])
    return [node for i, node in enumerate(nodes) if i in needed]


def _names_in(model: onnx.ModelProto) -> set[str]:
    """Names of all values, at any depth."""
    names = {name for node in all_nodes(model.graph.node) for name in (*node.input, *node.output)}
    for graph in iterate_graphs(model):
        names |= {end.name for end in (*graph.input, *graph.output)}
        names |= {tensor.name for tensor in graph.initializer}
    return names
