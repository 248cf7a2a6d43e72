"""Export of nodes that stay as the source has them; models joined of such parts.

Parts and nodes are joined by the names of the user's values: a node whose result a part computes is
dropped, and so is all that nothing reads any more.  The body of a Loop may be a part, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

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
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.nodes.values import tensor_array
from quantglow.importer.onnx.reading.canonicalization import sort_nodes
from quantglow.importer.onnx.reading.proto import (
    all_nodes,
    check_open,
    infer,
    iterate_graphs,
    main_opset,
    opset_versions,
)
from quantglow.importer.onnx.resolvers.external import read_names, rename
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Trips


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


def join(
    base: bytes, parts: Sequence[bytes], outputs: Sequence[str], body: LoopBody | None = None
) -> bytes:
    """The model of ``outputs``: ``parts`` where they compute a value, nodes of ``base`` elsewhere.

    The first part takes the inputs of the model, without parts the base.  Raises ``ModelError``
    where the opset of the parts has no form for a node of the base.
    """
    files = [base, *parts, *([] if body is None else [body.model])]
    protos = list(map(onnx.ModelProto.FromString, files))
    opset = max(FIRST_OPSET, *map(main_opset, protos[1:]))
    opset = opset_for(protos[0], opset)
    whole, *compiled = (at_opset(proto, opset) for proto in protos)
    joint = _Joined(whole)
    for part in compiled[: len(parts)]:
        joint.add(part)
    if body is not None:
        joint.put_into_loop(body.names, compiled[-1])
    inputs = (compiled[0] if parts else whole).graph.input
    proto = joint.model(inputs, outputs, compiled)
    name_left_out_results(proto)
    copy_shared_results(proto)
    check_open(proto)
    return bytes(proto.SerializeToString())


def with_body(node: External, body: LoopBody) -> External:
    """A result of a Loop with another body, without operands that nothing reads then.

    Raises ``ModelError`` as ``join`` does.
    """
    names = [output.name for output in onnx.ModelProto.FromString(node.model).graph.output]
    model = onnx.ModelProto.FromString(join(node.model, [], names, body))
    read = {name for each in model.graph.node for name in read_names(each)}
    pairs = [
        (info, arg)
        for info, arg in zip(model.graph.input, node.args, strict=True)
        if info.name in read
    ]
    del model.graph.input[:]
    model.graph.input.extend(info for info, _ in pairs)
    content = model.SerializeToString(deterministic=True)
    return replace(node, model=content, args=tuple(arg for _, arg in pairs))


@dataclass
class _Joined:
    """The nodes, weights and outputs of parts and of a base, whose names stay."""

    base: onnx.ModelProto
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    ends: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = list(self.base.graph.node)
        self.tensors = list(self.base.graph.initializer)
        self.ends = {end.name: end for end in self.base.graph.output}
        self.used = _names_in(self.base)

    def add(self, part: onnx.ModelProto) -> None:
        """The nodes of a part, which give its outputs their values from now on."""
        inputs = [end.name for end in part.graph.input]
        computed = {end.name: end for end in part.graph.output if end.name not in inputs}
        self.ends |= {end.name: end for end in part.graph.output}
        self.replace(computed)
        nodes, tensors = self.apart(part)
        self.nodes += nodes
        self.tensors += tensors

    def replace(self, names: Iterable[str]) -> None:
        """Rename values that are computed elsewhere from now on; nothing reads them."""
        old = {name: self.new(f"{name}:before") for name in names}
        self.nodes = [_giving(node, old) for node in self.nodes]
        self.tensors = [tensor for tensor in self.tensors if tensor.name not in old]

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

    def put_into_loop(self, trips: Trips, body: onnx.ModelProto) -> None:
        """Let a part compute the values of a loop's body."""
        results = {name for name, _, _ in trips.results}
        number = next(
            i
            for i, node in enumerate(self.nodes)
            if node.op_type == "Loop" and results & set(node.output)
        )
        loop = onnx.NodeProto()
        loop.CopyFrom(self.nodes[number])
        (graph,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
        inner, tensors = self.apart(body)
        old = {end.name: self.new(f"{end.name}:before") for end in body.graph.output}
        nodes = [_giving(node, old) for node in graph.node]
        ends = (
            trips.holds,
            *(carry.after for carry in trips.carried),
            *trips.stacked,
        )
        for output, name in zip(graph.output, ends, strict=True):
            output.name = name or output.name
        del graph.node[:]
        graph.node.extend(_live([*nodes, *inner], [output.name for output in graph.output]))
        read = {name for node in graph.node for name in read_names(node)}
        read |= {output.name for output in graph.output}
        weights = [tensor for tensor in graph.initializer if tensor.name in read]
        del graph.initializer[:]
        graph.initializer.extend(weights)
        self.nodes[number] = loop
        self.tensors += tensors

    def model(
        self,
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Sequence[str],
        parts: Sequence[onnx.ModelProto],
    ) -> onnx.ModelProto:
        """The model of everything that some output needs."""
        model = onnx.ModelProto(ir_version=max(part.ir_version for part in parts))
        model.producer_name = "quantglow"
        model.graph.name = "quantglow"
        model.graph.node.extend(_live(self.nodes, outputs))
        model.graph.input.extend(inputs)
        model.graph.output.extend(self.ends[name] for name in outputs)
        read = {name for node in model.graph.node for name in read_names(node)} | set(outputs)
        model.graph.initializer.extend(t for t in self.tensors if t.name in read)
        model.opset_import.extend(
            onnx.helper.make_opsetid(*stamp) for stamp in self.opsets(parts).items()
        )
        model.metadata_props.extend(parts[-1].metadata_props)
        return _with_ranks(sort_nodes(model))

    def opsets(self, parts: Sequence[onnx.ModelProto]) -> Mapping[str, int]:
        """The newest version of each domain."""
        versions: dict[str, int] = {}
        for part in (self.base, *parts):
            for domain, version in opset_versions(part).items():
                versions[domain] = max(version, versions.get(domain, 0))
        return versions


def _with_ranks(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a shape, as far as it can be inferred, for each output that declares none."""
    bare = {end.name: end for end in model.graph.output if not _is_ranked(end)}
    if bare:
        with suppress(*INFERENCE_FAILURES):
            for end in infer(model).graph.output:
                if end.name in bare and _is_ranked(end):
                    bare[end.name].CopyFrom(end)
    return model


def _is_ranked(end: onnx.ValueInfoProto) -> bool:
    """Whether a value is no tensor, or declares its dimensions."""
    return not end.type.HasField("tensor_type") or end.type.tensor_type.HasField("shape")


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
