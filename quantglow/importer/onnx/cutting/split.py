"""A model cut in two where its shapes stop being known before it runs.

Behind NonZero, NonMaxSuppression and their like nothing can be compiled; before them everything
can.  The head computes all values of concrete types; the tail is an ONNX model of the other nodes.
The tail computes the constants and shapes it needs itself, so it serves every shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import onnx

from quantglow.importer.onnx.budget import describe
from quantglow.importer.onnx.cutting.tail import begins_with_loop
from quantglow.importer.onnx.importer import live_nodes
from quantglow.importer.onnx.nodes.context import ImportScope
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.nodes.values import (
    OTHER_FLOATS,
    Foreign,
    ItemsValue,
    KnownValue,
    ObjectValue,
    Value,
    graph_dtype,
    is_float_type,
    value_onnx_type,
    value_shape,
)
from quantglow.importer.onnx.reading.label_codes import with_label_codes
from quantglow.importer.onnx.reading.light_models import with_data
from quantglow.importer.onnx.reading.proto import infer
from quantglow.importer.onnx.resolvers.external import read_names
from quantglow.importer.onnx.source import Source
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.size import fixed
from quantglow.support.classes import cached_property


@dataclass(frozen=True)
class Split:
    """``head`` takes the model's inputs and gives what ``tail`` and the user read of it; ``tail``
    takes values of the head and inputs of the model, by their names.  ``reasons``: a line for each
    node that made the cut necessary; ``late``: values that nothing but the tail can compute."""

    head: onnx.ModelProto
    tail: onnx.ModelProto
    reasons: tuple[str, ...]
    late: frozenset[str] = frozenset()


def node_reason(node: onnx.NodeProto, reasons: Sequence[str]) -> str:
    """Reason why a node is in the tail: for itself, or because of what comes before it."""
    matches = [line for line in reasons if line.startswith(f"{describe(node)}: ")]
    return matches[0] if matches else "; ".join(reasons)


def split(
    source: Source,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, Sequence[int]] | None = None,
) -> Split | None:
    """The two parts, None where nothing worth compiling comes before the tail, which does not begin
    with a Loop.  A head that computes nothing gives its first input.

    Raises ``ModelError`` as importing does.
    """
    source = replace(source, proto=with_label_codes(source.proto))
    cut = _Cut(source, source.scope(input_shapes, input_values, fallback=True, cuts=True))
    if not cut.deferred:
        return None
    tail_outputs = [o for o in source.proto.graph.output if o.name in cut.deferred_outputs]
    early = [name for name in cut.outputs if name not in cut.deferred_outputs]
    read = cut.read_by_tail
    inputs = [i for i in source.fed if i.name in read] + [cut.info(n) for n in cut.border]
    tail = _cut_part(source, cut.tail, inputs, tail_outputs)
    names = frozenset(name for number in cut.deferred for name in cut.nodes[number].output if name)
    head_outputs = dict.fromkeys([*early, *cut.border])
    if not cut.is_worth_it and not begins_with_loop(tail, names):
        return None
    head_outputs = head_outputs or dict.fromkeys(info.name for info in source.fed[:1])
    if not head_outputs:
        return None
    head = _cut_part(source, cut.head, source.fed, [cut.info(n) for n in head_outputs])
    inner = cut.computed - head_outputs.keys()
    head.graph.value_info.extend(i for i in source.proto.graph.value_info if i.name in inner)
    return Split(head, tail, tuple(cut.scope.problems), names)


def reasons(source: Source) -> tuple[str, ...]:
    """Each node that is not compiled, with its reason.  Raises ``ModelError``."""
    scope = source.scope(None, fallback=True)
    values = scope.values.values()
    held = (value.node if isinstance(value, ObjectValue) else value for value in values)
    nodes = (node for node in held if isinstance(node, External))
    elsewhere = (f"node {n.name!r} ({n.op_type}): {n.reason}" for n in nodes)
    return tuple(dict.fromkeys([*scope.problems, *elsewhere]))


@dataclass(frozen=True)
class _Cut:
    """The side of the cut for each node.  ``scope`` has what importing made of every value."""

    source: Source
    scope: ImportScope

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes that some output needs, in order."""
        return live_nodes(self.source.proto.graph)

    @cached_property
    def deferred(self) -> frozenset[int]:
        """Numbers of the nodes that could not be made, and of all behind them."""
        numbers: set[int] = set()
        names: set[str] = set()
        for number, node in enumerate(self.nodes):
            unmade = any(self.is_unmade(name) for name in node.output if name)
            if unmade or not names.isdisjoint(read_names(node)):
                numbers.add(number)
                names.update(node.output)
        return frozenset(numbers)

    def is_unmade(self, name: str) -> bool:
        """Whether the graph cannot hold a value; of known ones, an output."""
        value = self.scope.values.get(name)
        if isinstance(value, KnownValue):
            is_held = graph_dtype(value.onnx_type) is not None and value.array.size > 0
            return name in self.outputs and not is_held
        is_foreign = isinstance(value, Foreign | ObjectValue | ItemsValue)
        return is_foreign or value in self.scope.placeholders

    @property
    def head(self) -> list[onnx.NodeProto]:
        return [node for i, node in enumerate(self.nodes) if i not in self.deferred]

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names of the values that the head computes."""
        return frozenset(name for node in self.head for name in node.output if name)

    @cached_property
    def deferred_outputs(self) -> frozenset[str]:
        """Outputs that the tail gives; the head gives inputs and constants, unless it cannot hold
        them.
        """
        results = {name for number in self.deferred for name in self.nodes[number].output}
        passed = {name for name in self.outputs if name not in self.makers}
        return frozenset(results.intersection(self.outputs) | set(filter(self.is_unmade, passed)))

    @cached_property
    def tail(self) -> list[onnx.NodeProto]:
        """The deferred nodes, and those that compute known values they read."""
        numbers: set[int] = set()
        waiting = list(self.deferred)
        while waiting:
            number = waiting.pop()
            if number not in numbers:
                numbers.add(number)
                waiting.extend(self.operand_positions(self.nodes[number]))
        return [self.without_head_results(self.nodes[number]) for number in sorted(numbers)]

    def without_head_results(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """A node of the tail without results that the tail takes from the head."""
        positions = [
            number
            for number, name in enumerate(node.output)
            if isinstance(value := self.scope.values.get(name), KnownValue)
            and self.is_from_head(name, value)
        ]
        if not positions:
            return node
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for number in positions:
            copy.output[number] = f"{node.output[number]} again"
        return copy

    def operand_positions(self, node: onnx.NodeProto) -> Iterator[int]:
        """Numbers of the nodes that compute known operands which the head does not give."""
        for name in read_names(node):
            value = self.scope.values.get(name)
            if (
                isinstance(value, KnownValue)
                and name in self.makers
                and not self.is_from_head(name, value)
            ):
                yield self.makers[name]

    def is_from_head(self, name: str, value: KnownValue) -> bool:
        """Whether the tail takes a known value from the head: a float output of the head, which
        onnxruntime may round otherwise, while all that reads it should read one value.
        """
        is_early = name in self.outputs and name in self.computed
        return is_early and is_float_type(value_onnx_type(value))

    @cached_property
    def outputs(self) -> dict[str, None]:
        """Names of the model's outputs, in order."""
        return dict.fromkeys(output.name for output in self.source.proto.graph.output)

    @cached_property
    def makers(self) -> dict[str, int]:
        nodes = enumerate(self.nodes)
        return {name: number for number, node in nodes for name in node.output if name}

    @cached_property
    def read_by_tail(self) -> frozenset[str]:
        """Names of values from outside the tail."""
        results = {name for node in self.tail for name in node.output}
        read = {name for node in self.tail for name in read_names(node)}
        return frozenset((read | self.deferred_outputs) - results)

    @cached_property
    def border(self) -> list[str]:
        """Values of the head that the tail reads."""
        return [name for name in self.makers if name in self.read_by_tail]

    @property
    def is_worth_it(self) -> bool:
        """Whether the head computes anything that onnxruntime does not compute anyway."""
        values = [self.scope.values.get(name) for name in self.computed]
        nodes = [value for value in values if isinstance(value, Node) and value.operands]
        return not all(isinstance(node, External) for node in nodes)

    def element(self, name: str, value: Value) -> int:
        """The element type that the model gives a value, which may be another float than ours."""
        kind = value_onnx_type(value)
        return self.other_floats.get(name, kind) if is_float_type(kind) else kind

    @cached_property
    def other_floats(self) -> dict[str, int]:
        """Values that are float16, bfloat16 or float64 in the model."""
        if not self.source.conversions:
            return {}
        with suppress(*INFERENCE_FAILURES):
            typed = infer(self.source.proto).graph
            infos = (*typed.value_info, *typed.output)
            kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
            return {name: kind for name, kind in kinds.items() if kind in OTHER_FLOATS}
        return {}

    def info(self, name: str) -> onnx.ValueInfoProto:
        """A value with its type: declared, if it is an output with a shape; else with its shape
        where all inputs of the model have one, without which onnxruntime does not run every Scan.
        """
        value = self.scope.values[name]
        for output in self.source.proto.graph.output:
            kind = output.type.tensor_type
            if output.name == name and _is_declared(kind, self.element(name, value)):
                return output
        dims = [d for i in self.source.fed for d in i.type.tensor_type.shape.dim]
        is_fixed = bool(dims) and all(d.dim_value > 0 for d in dims)
        shape = value_shape(value) if is_fixed else None
        declaration: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(
            name, self.element(name, value), None if shape is None else fixed(shape)
        )
        return declaration


def _is_declared(kind: onnx.TypeProto.Tensor, element: int) -> bool:
    """Whether a type has this element type and a shape."""
    return kind.elem_type == element and kind.HasField("shape")


def _cut_part(
    source: Source,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A model of some of the nodes, with the initializers that they read or that are outputs."""
    outputs = list(outputs)
    model = onnx.ModelProto(ir_version=max(source.proto.ir_version, 4))
    model.opset_import.extend(source.proto.opset_import)
    model.graph.name = source.proto.graph.name
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    model.graph.output.extend(outputs)
    read = {name for node in model.graph.node for name in read_names(node)}
    read.update(output.name for output in outputs)
    initializers = source.proto.graph.initializer
    needed = (tensor for tensor in initializers if tensor.name in read)
    model.graph.initializer.extend(with_data(tensor, source.weights) for tensor in needed)
    return model
