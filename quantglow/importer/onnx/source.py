"""An ONNX model that is read once and imported at any number of shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import onnx
from google.protobuf.message import EncodeError

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.importer import (
    declare_inputs,
    import_nodes,
    known_initializers,
    live_nodes,
    new_scope,
    output_node,
)
from quantglow.importer.onnx.input_shapes import declared_dims, resolve_shapes, resolve_values
from quantglow.importer.onnx.nodes.context import ImportScope, Unsupported
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES, fold
from quantglow.importer.onnx.nodes.values import (
    OTHER_FLOATS,
    KnownValue,
    ObjectValue,
    Value,
    held_dtype,
    is_container,
    node_origin,
    supported_dtype,
    tensor_array,
    type_text,
)
from quantglow.importer.onnx.reading.label_codes import with_label_codes
from quantglow.importer.onnx.reading.light_models import Weights, light, source_hash, whole
from quantglow.importer.onnx.reading.loading import check, check_age, load_model
from quantglow.importer.onnx.reading.proto import all_nodes, clear_notes, infer, opset_versions
from quantglow.importer.onnx.resolvers.external import opaque_types
from quantglow.ir.graph.family import FreeCase, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.graph.origins import Origin
from quantglow.ir.graph.signature import Port, Shapes, Signature
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import Dim, decide_in, find_guards, fixed
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property
from quantglow.support.errors import ModelError, UndecidedError, UnsupportedOpError
from quantglow.transforms.size_sources import check_sources

Model = str | os.PathLike[str] | bytes | onnx.ModelProto


def import_model(
    model: Model,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    fallback: bool = False,
    input_values: Mapping[str, int | Sequence[int]] | None = None,
) -> Graph:
    """The graph of an ONNX model (opset 7 or newer): float, between the Quantize and Dequantize
    that the model has.

    Inputs and outputs keep their ONNX names and layout; inside, images are NHWC between
    transposes.  ``input_shapes`` fixes dimensions that the model leaves free; a free batch
    dimension alone becomes 1.  float16, bfloat16 and float64 are computed as float32, and stay the
    types of inputs and outputs that declare them.

    ``input_values`` fixes the elements of small integer inputs that decide shapes or branches; what
    the graph is fed for them then changes nothing.

    ``fallback``: a node that cannot be compiled becomes ``External``, for another runtime.  So do
    those that read results whose shapes are known when it has run.

    Raises ``ModelError`` on files that are corrupt, unsafe, too old, or of unknown shape, and
    ``UnsupportedOpError`` with every node that cannot be compiled: ``UndecidedError`` where the
    values of inputs would help.
    """
    source, late = open_model(model), LateResults.OPAQUE
    return source.graph(input_shapes, input_values, fallback=fallback, late_results=late)


def open_model(model: Model) -> Source:
    """A checked model, not yet imported.  Raises ``ModelError``."""
    proto, weights = load_model(model)
    return Source(proto, weights=weights)


def open_light(proto: onnx.ModelProto, weights: Weights) -> Source:
    """A checked model whose ``weights`` are not in ``proto``."""
    model, paged = check(proto, "the model", None, weights)
    return Source(model, weights={**weights, **paged})


HEADING = "Inference error(s): "
"""Stands before the errors of a strict inference, behind the kind of the first one."""


@dataclass(frozen=True, eq=False)
class Source:
    """A checked model.  Facts that do not depend on shapes are computed once.

    ``unrolls``: recurrences are steps, as in files that were saved before there were loops.
    ``weights``: the initializers that ``proto`` has no data of.
    """

    proto: onnx.ModelProto
    unrolls: bool = False
    weights: Weights = field(default_factory=dict)

    @staticmethod
    def of(proto: onnx.ModelProto) -> Source:
        """The source of a model that was made from a checked one."""
        model, weights = light(proto)
        return Source(model, weights=weights)

    @property
    def whole(self) -> onnx.ModelProto:
        """The model with all its weights."""
        return whole(self.proto, self.weights) if self.weights else self.proto

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata by key, as far as it is text in UTF-8."""
        entries = ((entry.key, entry.value) for entry in self.proto.metadata_props)
        return {k: v for k, v in entries if isinstance(k, str) and isinstance(v, str)}

    def at(self, case: FreeCase, late_results: LateResults = LateResults.REFUSED) -> Graph:
        """The graph for a case; what cannot be compiled is left to the fallback.

        Late results that are symbolic have symbols, but for sizes of 0 and 1 in ``case.late``;
        where they are refused, loops are, too, whose bodies may be models of their own.

        Raises ``UndecidedError`` where more values would help, unless the case is for all values.
        """
        return self.graph(
            case.shape_map,
            case.value_map,
            fallback=True,
            late_results=late_results,
            late=dict(case.late),
            guards=case.guards,
        )

    def graph(
        self,
        input_shapes: Mapping[str, Sequence[Dim]] | None = None,
        input_values: Mapping[str, int | Sequence[int]] | None = None,
        *,
        fallback: bool = False,
        late_results: LateResults = LateResults.REFUSED,
        late: Shapes | None = None,
        guards: Guards | None = None,
    ) -> Graph:
        """The graph at these shapes and values, see ``import_model``; ``late_results``, ``late``
        and ``guards``: see ``ImportScope``.

        Where ``input_values`` are given, the fallback takes nothing for the lack of more of them.
        """
        scope = self.scope(
            input_shapes,
            input_values,
            fallback=fallback,
            late_results=late_results,
            late=late,
            guards=guards,
        )
        has_open = bool(scope.problems) or any(map(_is_late, scope.values.values()))
        if scope.deciding and (has_open or input_values is not None):
            decided = [f"input {n!r}: its values decide shapes or branches" for n in scope.deciding]
            raise UndecidedError([*scope.problems, *decided], scope.deciding)
        outputs = [(o.name, output_node(o.name, scope)) for o in self.proto.graph.output]
        if scope.problems:
            raise UnsupportedOpError(scope.problems)
        named = tuple((name, node) for name, node in outputs if node is not None)
        aliases = _renamed_values(self.decoded[1], scope)
        types = opaque_types(node for _, node in named)
        texts = {name: type_text(types[node]) for name, node in named if node in types}
        graph = Graph(scope.inputs, named, self.source_hash, {**self.declared, **texts})
        if scope.is_late:
            check_sources(graph, scope.guards)
        return scope.with_origins(replace(graph, sources=self.origins, aliases=aliases))

    def scope(
        self,
        input_shapes: Mapping[str, Sequence[Dim]] | None = None,
        input_values: Mapping[str, int | Sequence[int]] | None = None,
        *,
        fallback: bool = False,
        late_results: LateResults = LateResults.REFUSED,
        late: Shapes | None = None,
        guards: Guards | None = None,
    ) -> ImportScope:
        """Every value at these shapes and values of inputs, and what cannot be imported."""
        check_age(self.proto)
        shapes = resolve_shapes(self.fed, input_shapes or {})
        values = resolve_values(self.fed, input_values or {})
        if late_results is LateResults.REFUSED:
            fallback = fallback and not any(decide_in(0, shape) for shape in shapes.values())
        guards = guards or find_guards(chain.from_iterable(shapes.values())) or Guards({})
        start = guards.snapshot
        while True:
            scope = new_scope(self.imported, Meter(weights_nbytes=self._weights_nbytes), fallback)
            scope.unrolls, scope.late_results, scope.late = self.unrolls, late_results, late or {}
            scope.values.update((value.name, value) for value in self.decoded[0])
            scope.inputs = declare_inputs(self.fed, shapes, scope, values)
            scope.guards = guards
            try:
                with np.errstate(all="ignore"):  # weights may be infinite
                    import_nodes(self.decoded[1], scope)
                return scope
            except ModelError:
                if not guards.guess_again(start):
                    raise

    @property
    def _weights_nbytes(self) -> int:
        return sum(value.array.nbytes for value in self.decoded[0])

    def giving(self, names: Iterable[str]) -> Source:
        """The model with these values as its outputs."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        declared = {info.name: info for info in copy.graph.output}
        del copy.graph.output[:]
        copy.graph.output.extend(declared.get(n) or onnx.ValueInfoProto(name=n) for n in names)
        return replace(self, proto=copy)

    def check_ranks(self, shapes: Shapes) -> None:
        """Raise ``ModelError`` where an input without a declared rank gets one that does not fit.

        onnxruntime has not seen the rank when it loads the model; some of its kernels end the
        process over it.
        """
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        free = [i for i in copy.graph.input if not i.type.tensor_type.HasField("shape")]
        if not free:
            return
        for value in free:
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=n) for n in shapes.get(value.name, ())
            )
        # Values of other domains' operators have no type, which inference calls an error, too.
        if problems := _failures(copy) - _failures(self.proto):
            text = "; ".join(sorted(problems))
            raise ModelError(f"inputs of the shapes {dict(shapes)} do not fit: {text}")

    def snapshot(self) -> Source:
        """A source that stays as it is when the caller changes the ``ModelProto``."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        return replace(self, proto=copy)

    def serialize(self) -> bytes:
        """The whole model as one message.  Raises ``ModelError`` from 2 GiB on."""
        try:
            return bytes(self.whole.SerializeToString())
        except (EncodeError, ValueError) as error:
            raise ModelError(f"the model does not fit one message of 2 GiB: {error}") from None

    def to_bytes(self) -> bytes:
        """The model as a file of its own, without what importing does not look at."""
        model = self.without_notes()
        return bytes(whole(model, self.weights).SerializeToString(deterministic=True))

    def without_notes(self) -> onnx.ModelProto:
        """A copy of the light model without what importing does not look at."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        for name in ("doc_string", "metadata_props", "training_info"):
            copy.ClearField(name)
        for name in ("doc_string", "metadata_props", "quantization_annotation"):
            copy.graph.ClearField(name)
        clear_notes(copy.graph.node)
        return copy

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each node that is not compiled, with its reason.  Raises ``ModelError``."""
        scope = self.scope(None, fallback=True)
        values = scope.values.values()
        held = (value.node if isinstance(value, ObjectValue) else value for value in values)
        nodes = (node for node in held if isinstance(node, External))
        elsewhere = (f"node {n.name!r} ({n.op_type}): {n.reason}" for n in nodes)
        return tuple(dict.fromkeys([*scope.problems, *elsewhere]))

    @cached_property
    def signature(self) -> Signature:
        """The inputs and outputs as the model declares them.  Raises ``ModelError``."""
        return Signature(
            tuple(map(parse_port, self.fed)), tuple(map(parse_output, self.proto.graph.output))
        )

    def fixed_signature(self, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Signature:
        """The signature with these input shapes.  Raises ``ModelError``."""
        shapes = resolve_shapes(self.fed, input_shapes or {})
        inputs = (replace(port, dims=fixed(shapes[port.name])) for port in self.signature.inputs)
        return Signature(tuple(inputs), self.signature.outputs)

    @cached_property
    def declared(self) -> dict[str, str]:
        """The float types of inputs and outputs that are not float32, and the types of those that
        are no tensors."""
        ends = (*self.fed, *self.proto.graph.output)
        return {end.name: kind for end in ends if (kind := _declared_type(end))}

    @cached_property
    def conversions(self) -> tuple[str, ...]:
        """Notes on what of the model is computed in another float type than it says."""
        floats = {n: kind for n, kind in self.declared.items() if kind in OTHER_FLOATS.values()}
        if floats:
            ends = ", ".join(f"{name} ({kind})" for name, kind in floats.items())
            return (f"inputs and outputs that are computed in float32: {ends}",)
        kinds = {OTHER_FLOATS[kind] for kind in _inner_types(self.proto) if kind in OTHER_FLOATS}
        return (f"computed in float32: {' and '.join(sorted(kinds))} inside",) if kinds else ()

    @cached_property
    def source_hash(self) -> str:
        """Hash of the computation; declared shapes do not count."""
        return source_hash(self.proto, self.weights)

    @cached_property
    def imported(self) -> onnx.ModelProto:
        """The model as it is imported: with numbers for labels that are strings."""
        return with_label_codes(self.proto)

    @cached_property
    def decoded(self) -> tuple[tuple[KnownValue, ...], tuple[onnx.NodeProto, ...]]:
        """Initializers and Constants, and the other nodes that some output needs."""
        opsets = opset_versions(self.proto)
        constants, nodes = list(known_initializers(self.proto.graph, self.weights)), []
        for node in live_nodes(self.imported.graph):
            values = _decode_constant(node, opsets)
            constants += values
            if not values:
                nodes.append(node)
        return tuple(constants), tuple(nodes)

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """The nodes that some output needs, those of subgraphs and calls of functions included."""
        nodes = (node_origin(node, None) for node in all_nodes(self.decoded[1]))
        return tuple(dict.fromkeys(origin for node in nodes for origin in node.chain))

    @cached_property
    def fed(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The inputs; what has an initializer is a constant (old models list it as an input)."""
        graph = self.proto.graph
        initialized = {t.name for t in graph.initializer}
        fed = tuple(i for i in graph.input if i.name not in initialized)
        for value in fed:
            if not value.type.HasField("tensor_type"):
                raise UnsupportedOpError(
                    [f"input {value.name!r} is no tensor; quantglow feeds tensors only"]
                )
        return fed


def _renamed_values(nodes: Iterable[onnx.NodeProto], scope: ImportScope) -> dict[str, str]:
    """Results that have another name in the graph, as that of an Identity has its operand's."""
    names = (name for node in nodes for name in node.output if name not in scope.claimed)
    pairs = ((name, scope.values.get(name)) for name in names)
    return {n: value.name for n, value in pairs if isinstance(value, Node) and value.name != n}


def _decode_constant(node: onnx.NodeProto, opsets: dict[str, int]) -> list[KnownValue]:
    """The value of a Constant; the importer says what is wrong with those that have none."""
    if node.op_type != "Constant" or node.domain:
        return []
    try:
        if [a.name for a in node.attribute] == ["value"] and node.attribute[0].HasField("t"):
            return [KnownValue(node.output[0], tensor_array(node.attribute[0].t))]
        return fold(node, {}, opsets, Meter(weights_nbytes=node.ByteSize()))
    except (Unsupported, ModelError, LookupError):
        return []


def _is_late(value: Value) -> bool:
    """Whether a value has a shape that is known late."""
    return isinstance(value, ObjectValue) and value.is_late


def parse_port(value: onnx.ValueInfoProto) -> Port:
    """An input or output; an undeclared element type is float."""
    declared = _declared_type(value)
    if is_container(value.type):
        return Port(value.name, DType.OPAQUE, (), declared)
    element = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return Port(value.name, supported_dtype(value.name, element), declared_dims(value), declared)


def parse_output(value: onnx.ValueInfoProto) -> Port:
    """An output; one of elements that no graph holds is opaque."""
    element = value.type.tensor_type.elem_type
    if is_container(value.type) or not element or held_dtype(element) is not None:
        return parse_port(value)
    return Port(value.name, DType.OPAQUE, declared_dims(value), type_text(value.type))


def _declared_type(value: onnx.ValueInfoProto) -> str:
    """The type of an end that the element type of the graph does not tell, see ``Port``."""
    if is_container(value.type):
        return type_text(value.type)
    return OTHER_FLOATS.get(value.type.tensor_type.elem_type, "")


def _inner_types(proto: onnx.ModelProto) -> Iterator[int]:
    """The element types of weights, and those that values are cast to."""
    yield from (tensor.data_type for tensor in proto.graph.initializer)
    for node in all_nodes(proto.graph.node):
        if node.op_type == "Cast":
            yield from (attribute.i for attribute in node.attribute if attribute.name == "to")


def _failures(model: onnx.ModelProto) -> frozenset[str]:
    """Errors of a strict inference, a text for each node."""
    try:
        infer(model, strict=True)
    except INFERENCE_FAILURES as error:
        return frozenset(str(error).replace(HEADING, "").splitlines()) - {""}
    return frozenset()
