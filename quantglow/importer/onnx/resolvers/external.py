"""ONNX nodes nobody here imports, as ``External`` nodes that another runtime computes.

Such a node becomes a model of its own.  Its operands are what it reads and what the bodies of its
subgraphs capture; small known operands and those of types that the graph does not have are stored
in the model.  ONNX's inference types the results; only concrete types enter the graph.

Strings, sequences, optionals and maps go from one such node to the next, and where late results are
opaque, so do tensors without a shape that is known before the run.  The graph has no more of their
type than that it is opaque: the models of the nodes have it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.context import (
    AlreadyReported,
    ImportScope,
    Unsupported,
    qualify,
)
from quantglow.importer.onnx.nodes.folding import FAILURES
from quantglow.importer.onnx.nodes.values import (
    OTHER_FLOATS,
    ItemsValue,
    KnownSizes,
    KnownValue,
    ObjectValue,
    Value,
    as_element,
    graph_dtype,
    held_dtype,
    is_container,
    type_text,
    value_onnx_type,
    value_shape,
    with_inner_sizes,
)
from quantglow.importer.onnx.reading.proto import (
    all_nodes,
    all_tensors,
    check_open,
    clear_notes,
    decode,
)
from quantglow.importer.onnx.resolvers.inferred_types import (
    exact_dtype,
    has_element,
    late_types,
    result_types,
)
from quantglow.importer.onnx.resolvers.result_types import ResultType, Types, ml_types
from quantglow.ir.graph.family import LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.external import NO_MODEL, External
from quantglow.ir.ops.quantization import Dequantize
from quantglow.ir.symbolic.size import Size
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import FileFormatError, ModelError

STORED_NBYTES = 1024
"""Known operands up to this size are part of the node: axes, shapes, scalars."""


def left_to_fallback(
    proto: onnx.NodeProto, scope: ImportScope, reason: str
) -> dict[str, Value] | None:
    """External nodes for the outputs that something reads; None if they have no concrete types, or
    bodies declare float types that the graph does not have."""
    single = None if _declares_other_floats(proto) else _single_model(proto, scope)
    if single is None:
        return None
    named = ((info.name, scope.values[info.name]) for info in single.proto.graph.input)
    operands = {name: object_value(value, scope) or value for name, value in named}
    inferred = result_types(single.proto, operands, scope)
    types = ml_types(proto, _operand_types(proto, scope)) | _complete_types(inferred, scope)
    outputs = [name for name in proto.output if name and name in scope.used]
    declared = {name: _declared_type(inferred.get(name)) for name in types}
    if scope.late_results is not LateResults.REFUSED:
        late = late_types(single.proto, [n for n in outputs if n not in types], scope)
        types |= dict.fromkeys(late, TensorType(DType.OPAQUE, ()))
        declared |= late
    if not outputs or not all(name in types for name in outputs):
        return None
    infos = [value_info(name, types[name], declared.get(name)) for name in outputs]
    single.proto.graph.output.extend(infos)
    try:
        check_open(single.proto)
    except onnx.checker.ValidationError:
        return None
    model = single.proto.SerializeToString(deterministic=True)
    values: dict[str, Value] = {}
    for position, (name, info) in enumerate(zip(outputs, infos, strict=True)):
        is_object = types[name].dtype.is_object
        if not is_object and types[name].is_empty:
            zeros = np.zeros(types[name].fixed_shape, types[name].dtype.numpy)
            values[name] = KnownValue(name, zeros)
            continue
        node = External(
            name=scope.claim(name),
            args=single.args,
            model=model,
            output=position,
            result=types[name],
            op_type=qualify(proto),
            reason=reason,
        )
        inner = inferred[name].dims if is_container(info.type) else ()
        values[name] = ObjectValue(node, info.type, inner) if is_object else node
    return values


def _declares_other_floats(proto: onnx.NodeProto) -> bool:
    """Whether a subgraph declares a value as float16, bfloat16 or float64: its operands are float32
    in the graph."""
    graphs = [g for node in all_nodes([proto]) for a in node.attribute for g in (a.g, *a.graphs)]
    infos = (info for g in graphs for info in (*g.input, *g.output, *g.value_info))
    return any(info.type.tensor_type.elem_type in OTHER_FLOATS for info in infos)


def _declared_type(kind: ResultType | None) -> onnx.TypeProto | None:
    """The ONNX type of an opaque result, with the sizes that are known; None for other ones."""
    if kind is None or kind.declared is None:
        return None
    return with_inner_sizes(kind.declared, kind.dims)


def _operand_types(proto: onnx.NodeProto, scope: ImportScope) -> list[TensorType]:
    """Types of operands that the graph has; a node that was taken alone has no others."""
    values = [scope.values[name] for name in proto.input if name]
    kinds = [(held_dtype(value_onnx_type(value)), value_shape(value)) for value in values]
    return [TensorType(dtype, shape) for dtype, shape in kinds if dtype and shape is not None]


@dataclass(frozen=True)
class SingleModel:
    """A model of one node without outputs yet, and the values that its inputs stand for."""

    proto: onnx.ModelProto
    args: tuple[Node, ...]


def _single_model(proto: onnx.NodeProto, scope: ImportScope) -> SingleModel | None:
    """The node alone, without its notes; None if it reads what the graph cannot hold."""
    graph = onnx.GraphProto(name="external", node=[proto])
    clear_notes(graph.node)
    args = []
    for name in dict.fromkeys(read_names(proto)):
        value = scope.values.get(name)
        if isinstance(value, KnownValue) and not isinstance(value, KnownSizes) and is_stored(value):
            graph.initializer.append(onnx.numpy_helper.from_array(_as_stored(value.array), name))
            continue
        node = None if value is None else _resolve_node(name, scope)
        if node is None:
            return None
        args.append(node)
        held = None if value is None else object_value(value, scope)
        declared = None if held is None else held.declared
        graph.input.append(value_info(name, node.type, declared))
    opsets = [onnx.helper.make_opsetid(domain, v) for domain, v in scope.opsets.items()]
    version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(version, 8))
    return SingleModel(model, tuple(args))


def _resolve_node(name: str, scope: ImportScope) -> Node | None:
    """The node of a value as ONNX has it, behind a Dequantize where the graph has codes of it; None
    for one that nobody made."""
    value = scope.values[name]
    if (held := object_value(value, scope)) is not None:
        return held.node
    try:
        node = scope.tensor(name)
    except (Unsupported, AlreadyReported):
        return None
    if not isinstance(value, Node) or node.type.quant is None:
        return node

    def reals() -> Node:
        return Dequantize(name=scope.claim(f"{name}:reals", derived=True), x=node)

    return scope.share(node, "reals", reals)


def object_value(value: Value, scope: ImportScope) -> ObjectValue | None:
    """A value as other runtimes compute with it; None for one that the graph computes with, and for
    a sequence that nothing makes."""
    if isinstance(value, ItemsValue):
        if value not in scope.objects:
            results = left_to_fallback(value.maker, scope, "other runtimes read it as it is") or {}
            held = results.get(value.maker.output[0])
            if not isinstance(held, ObjectValue):
                return None
            scope.objects[value] = held
        return scope.objects[value]
    return value if isinstance(value, ObjectValue) else None


def read_names(proto: onnx.NodeProto) -> Iterator[str]:
    """The node's operands, then what its subgraphs capture."""
    yield from filter(None, proto.input)
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from captured_names(graph)


def captured_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a body reads from outside."""
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        yield from (name for name in read_names(node) if name not in defined)
        defined.update(node.output)
    yield from (output.name for output in graph.output if output.name not in defined)


def is_stored(value: KnownValue) -> bool:
    """Whether a known operand becomes part of the node: it is small, or of a type of its own."""
    return graph_dtype(value.onnx_type) is None or value.array.nbytes <= STORED_NBYTES


def _as_stored(array: Array) -> Array:
    """The node that the graph would hold, or the array itself."""
    onnx_type = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    return array if graph_dtype(onnx_type) is None else as_element(array)


def value_info(
    name: str, kind: TensorType, declared: onnx.TypeProto | None = None
) -> onnx.ValueInfoProto:
    """The declaration of a value, without its free sizes; ``declared``: the ONNX type of an opaque
    one."""
    if kind.dtype is DType.OPAQUE:
        return onnx.ValueInfoProto(name=name, type=declared)
    element = onnx.helper.np_dtype_to_tensor_dtype(kind.dtype.numpy)  # objects are strings there
    dims = [None if isinstance(size, Size) else size for size in kind.shape]
    info: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(name, element, dims)
    return info


def _complete_types(types: Types, scope: ImportScope) -> dict[str, TensorType]:
    """The types with late sizes where the node decides them, without those of results that cannot
    be held."""
    complete = {}
    for name, kind in types.items():
        if kind.declared is not None:
            complete[name] = TensorType(kind.dtype, ())
            continue
        # A result of another name in the graph could not be found again by its name.
        is_new = name in scope.used and name not in scope.claimed
        if None not in kind.dims or (scope.is_late and is_new):
            dims = enumerate(kind.dims)
            shape = tuple(scope.late_size(name, axis) if n is None else n for axis, n in dims)
            complete[name] = TensorType(kind.dtype, shape)
    return complete


def join_model(nodes: Sequence[External], read: Sequence[Node]) -> bytes:
    """One model that computes External nodes together; ``read`` are those whose values it gives.

    Values are called as their nodes; operands computed elsewhere are its inputs, Constants its
    initializers.
    """
    joined = onnx.ModelProto()
    joined.CopyFrom(onnx.ModelProto.FromString(nodes[0].model))
    del joined.graph.node[:], joined.graph.initializer[:]
    del joined.graph.input[:], joined.graph.output[:]
    groups: dict[tuple[bytes, tuple[Node, ...]], list[External]] = {}
    for node in nodes:
        groups.setdefault((node.model, node.args), []).append(node)
    for number, ((model, _), members) in enumerate(groups.items()):
        _add_part(joined.graph, onnx.ModelProto.FromString(model).graph, members, f"{number}:")
    inside, types = set(nodes), opaque_types(nodes)
    outside = dict.fromkeys(arg for node in nodes for arg in node.args if arg not in inside)
    for arg in outside:
        if isinstance(arg, Constant):
            joined.graph.initializer.append(onnx.numpy_helper.from_array(arg.value, arg.name))
        else:
            joined.graph.input.append(value_info(arg.name, arg.type, types.get(arg)))
    joined.graph.output.extend(value_info(n.name, n.type, types.get(n)) for n in read)
    return bytes(joined.SerializeToString())


def opaque_types(nodes: Iterable[Node]) -> dict[Node, onnx.TypeProto]:
    """The ONNX types of the opaque operands and results of External nodes."""
    types: dict[Node, onnx.TypeProto] = {}
    for node in nodes:
        if isinstance(node, External) and any(
            value.type.dtype is DType.OPAQUE for value in (node, *node.args)
        ):
            graph = onnx.ModelProto.FromString(node.model).graph
            types[node] = graph.output[node.output].type
            types |= {arg: info.type for arg, info in zip(node.args, graph.input, strict=True)}
    return {node: kind for node, kind in types.items() if node.type.dtype is DType.OPAQUE}


def _add_part(
    joined: onnx.GraphProto, part: onnx.GraphProto, members: Sequence[External], prefix: str
) -> None:
    """Append the node of one model under the names of the graph; what is its own gets a prefix."""
    args = zip(part.input, members[0].args, strict=True)
    names = {info.name: arg.name for info, arg in args}
    names |= {part.output[member.output].name: member.name for member in members}
    for tensor in part.initializer:
        names[tensor.name] = f"{prefix}{tensor.name}"
        joined.initializer.add().CopyFrom(tensor)
        joined.initializer[-1].name = names[tensor.name]
    for node in part.node:
        unread = {name: f"{prefix}{name}" for name in node.output if name}
        joined.node.add().CopyFrom(rename(node, {**unread, **names}))
        joined.node[-1].name = members[0].name  # for errors of the runtime


def rename(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """The node on other value names; bodies of subgraphs keep what they define themselves."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    for attribute in copy.attribute:
        for graph in (attribute.g, *attribute.graphs):
            _rename_captured(graph, names)
    return copy


def _rename_captured(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    defined |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in names.items() if name not in defined}
    new_names = {*outer.values(), *defined}
    # A body may define what another value is called in the graph.
    for name in sorted(defined.intersection(outer.values())):
        inner = f"{name}:inner"
        while inner in new_names:
            inner += "'"
        outer[name] = inner
        new_names.add(inner)
    for node in graph.node:
        node.CopyFrom(rename(node, outer))
    for info in (*graph.input, *graph.output):
        info.name = outer.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = outer.get(tensor.name, tensor.name)


def check_externals(graph: Graph, *, is_run: bool = True) -> None:
    """Check the ONNX nodes inside a graph from a file, and what it says of opaque outputs; one that
    is not run may have some without their models.  Raises ``FileFormatError``."""
    for node in graph.nodes:
        if isinstance(node, External) and (is_run or node.model != NO_MODEL):
            check_external(node)
    types = opaque_types(node for _, node in graph.outputs)
    for name, node in graph.outputs:
        if node in types and graph.declared.get(name) != type_text(types[node]):
            raise FileFormatError(f"output {name!r} is not {graph.declared.get(name)}")


def check_external(node: External) -> None:
    """Raise ``FileFormatError`` unless the node's model is what the importer makes: files are not
    trusted."""
    try:
        proto = decode(node.model, node.name)
        if any(t.data_location == t.EXTERNAL for t in all_tensors(proto)):
            raise ValueError("it reads other files")
        check_open(proto)
        stated = proto.graph.output[node.output]
        types = [_stated_type(arg) for arg in node.args]
    except (onnx.checker.ValidationError, ModelError, *FAILURES) as error:
        raise FileFormatError(f"{node!r} holds no valid ONNX model: {error}") from None
    if len(proto.graph.node) != 1 or not states(stated, node.result):
        raise FileFormatError(f"{node!r} does not fit the ONNX model it holds")
    operands = zip(proto.graph.input, node.args, types, strict=False)
    if len(proto.graph.input) != len(node.args) or not all(
        states(info, arg.type) and (opaque is None or info.type == opaque)
        for info, arg, opaque in operands
    ):
        raise FileFormatError(f"{node!r}: its operands do not fit the ONNX model it holds")


def _stated_type(node: Node) -> onnx.TypeProto | None:
    """The ONNX type of an opaque value, None for other ones.  Raises ``ValueError`` for a value
    whose type nothing states."""
    if node.type.dtype is not DType.OPAQUE:
        return None
    if not isinstance(node, External):
        raise ValueError(f"{node!r} is opaque, and no ONNX model gives it")
    return decode(node.model, node.name).graph.output[node.output].type


def states(info: onnx.ValueInfoProto, kind: TensorType) -> bool:
    """Whether a declaration has the element type and the shape of a value.

    Free sizes are open.  An open size may also be a plain one, which the run of the node tells.
    """
    if kind.dtype is DType.OPAQUE:
        return info.type.WhichOneof("value") is not None and has_element(info.type)
    tensor = info.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    has_shape = tensor.HasField("shape") and exact_dtype(tensor.elem_type) is kind.dtype
    return (
        has_shape
        and len(dims) == len(kind.shape)
        and all(n is None or n == size for n, size in zip(dims, kind.shape, strict=True))
    )
