"""Types of the results of a model of one node: as ONNX infers them, the model declares them, or
onnxruntime knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pkgutil import resolve_name

import onnx

from quantglow.importer.onnx.domains import DOMAINS
from quantglow.importer.onnx.nodes.context import ImportScope
from quantglow.importer.onnx.nodes.folding import FAILURES, INFERENCE_FAILURES, with_defaults
from quantglow.importer.onnx.nodes.values import (
    Value,
    held_dtype,
    inner_tensor,
    is_container,
    type_of_text,
)
from quantglow.importer.onnx.operators.tensor.shape import MAX_ELEMENTS
from quantglow.importer.onnx.reading.proto import infer
from quantglow.importer.onnx.resolvers.loop_types import looping_types
from quantglow.importer.onnx.resolvers.result_types import (
    ResultType,
    Sizing,
    Types,
    at_sizes,
    free_sizes,
    free_types,
)
from quantglow.ir.types import DType

OUTPUT_TYPES = "quantglow.ort.session:output_types"
"""Name of the function that tells the types of a model's outputs, see ``external.RUNTIME``."""


def result_types(
    proto: onnx.ModelProto, operands: Mapping[str, Value], scope: ImportScope
) -> Types:
    """Types of the outputs of a model of one node, also where its operands have free sizes."""
    free = free_sizes(proto, operands)
    if not free:
        return _inferred_types(proto, scope)

    def types_at(sizes: Sizing) -> Types:
        return _inferred_types(at_sizes(proto, operands, sizes), scope)

    return free_types(free, types_at)


def late_types(
    proto: onnx.ModelProto, names: Sequence[str], scope: ImportScope
) -> dict[str, onnx.TypeProto]:
    """Types of outputs of a model of one node, with the sizes that are inferred, else without a
    shape: as the model declares them, or as onnxruntime knows them."""
    types: dict[str, onnx.TypeProto] = {}
    if proto.graph.node[0].domain in DOMAINS:  # else what the model says does not make it run
        inferred = _infer(proto, scope) if names else {}
        stated = {n: _without_shape(scope.declared[n].type) for n in names if n in scope.declared}
        stated |= {n: _without_names(inferred[n]) for n in names if n in inferred}
        types = {name: kind for name, kind in stated.items() if has_element(kind)}
    if len(types) == len(names):
        return types
    texts = resolve_name(OUTPUT_TYPES)(_with_open_outputs(proto).SerializeToString())
    known = ((name, type_of_text(texts[name])) for name in names if name in texts)
    return {name: kind for name, kind in known if kind is not None} | types


def has_element(kind: onnx.TypeProto) -> bool:
    """Whether a type is a container, or a tensor of a stated element type."""
    return is_container(kind) or kind.tensor_type.elem_type != onnx.TensorProto.UNDEFINED


def _without_names(kind: onnx.TypeProto) -> onnx.TypeProto:
    """The type of a tensor without the names of its sizes; containers as they are."""
    copy = onnx.TypeProto()
    copy.CopyFrom(kind)
    for dim in copy.tensor_type.shape.dim if kind.HasField("tensor_type") else ():
        dim.ClearField("dim_param")
    return copy


def _without_shape(kind: onnx.TypeProto) -> onnx.TypeProto:
    """The type of a tensor of any shape; containers as they are."""
    if is_container(kind):
        return kind
    element = kind.tensor_type.elem_type
    return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=element))


def _with_open_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model of one node with all outputs of that, without types."""
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    outputs = [name for name in proto.graph.node[0].output if name]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return probe


def _infer(proto: onnx.ModelProto, scope: ImportScope) -> dict[str, onnx.TypeProto]:
    """The types that ONNX infers for the node's outputs."""
    probe = _with_open_outputs(proto)
    inferred: dict[str, onnx.TypeProto] = {}
    with suppress(*INFERENCE_FAILURES, *FAILURES):
        probe.graph.node[0].CopyFrom(with_defaults(proto.graph.node[0], scope.opsets))
        inferred |= {info.name: info.type for info in infer(probe).graph.output}
        inferred |= looping_types(proto)
    return inferred


def _inferred_types(proto: onnx.ModelProto, scope: ImportScope) -> Types:
    """Types of the node's outputs: inferred, else as the model declares them."""
    inferred = _infer(proto, scope)
    outputs = [name for name in proto.graph.node[0].output if name]
    declared = {name: info.type for name, info in scope.declared.items()}
    types = {name: _result_type(inferred.get(name), declared.get(name)) for name in outputs}
    return {name: kind for name, kind in types.items() if kind is not None}


def _result_type(*kinds: onnx.TypeProto | None) -> ResultType | None:
    """The first of the types that is a tensor of the graph's element types and a known shape, else
    the first of a known rank."""
    open_kind = None
    for each in kinds:
        if each is None or not each.WhichOneof("value"):
            continue
        if is_container(each):
            inner = inner_tensor(each)
            return ResultType(DType.OPAQUE, _sizes_in(inner) if inner else (), each)
        tensor = each.tensor_type
        dtype = exact_dtype(tensor.elem_type)
        if dtype is None or not tensor.HasField("shape"):
            continue
        sizes = _sizes_in(tensor)
        if not 0 < math.prod(size for size in sizes if size is not None) <= MAX_ELEMENTS:
            continue
        kind = ResultType(dtype, sizes)
        if None not in sizes:
            return kind
        open_kind = open_kind or kind
    return open_kind


def _sizes_in(tensor: onnx.TypeProto.Tensor) -> tuple[int | None, ...]:
    """The sizes that a type states."""
    dims = tensor.shape.dim
    return tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in dims)


def exact_dtype(onnx_type: int) -> DType | None:
    """The element type, None for those that the graph does not hold as they are."""
    dtype = held_dtype(onnx_type)
    is_wide = dtype is DType.F32 and onnx_type != onnx.TensorProto.FLOAT
    return None if is_wide else dtype
