"""Types of the results of a Loop, whatever the number of its trips.

ONNX infers no shape of a carried value, since a trip may change it.  Here a trip is inferred again
and again: an axis whose size a trip changes may have any size before the next one.  That ends when
a trip gives what it took.  The first axis of stacked values is the number of trips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper

from quantglow.importer.onnx.operators.controlflow.subgraphs import names_read_by
from quantglow.importer.onnx.reading.proto import all_nodes, infer

Types = Mapping[str, onnx.TypeProto]

MOST_NBYTES = 1 << 14
"""Maximum size of constants whose elements inference sees: more decide no shape."""


MOST_INFERENCES = 512
"""Maximum number of inferences for a node: each axis that grows may need one more of the body, and
of each loop inside of it."""


def looping_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of the results of a model's only node, if that is a Loop or has one inside, as far
    as they are known; else nothing.  Raises ``RuntimeError`` where that takes too many inferences,
    as loops inside of each other may be made to need."""
    (node,) = model.graph.node
    rule = _rule_for(node)
    if rule is None:
        return {}
    types = {info.name: info.type for info in model.graph.input}
    return rule(_Scope(model, types, ()).within(model.graph), node)


@dataclass(frozen=True)
class _Scope:
    """Values around a node: their types, and the ``tensors`` of small ones that are known.

    ``inferences``: those that are left, for this scope and all that are made of it.
    """

    model: onnx.ModelProto
    types: Types
    tensors: tuple[onnx.TensorProto, ...]
    inferences: Iterator[int] = field(default_factory=lambda: iter(range(MOST_INFERENCES)))

    def within(self, graph: onnx.GraphProto, inputs: Types | None = None) -> _Scope:
        """The scope of a graph before its first node."""
        small = tuple(tensor for tensor in graph.initializer if tensor.ByteSize() <= MOST_NBYTES)
        types = {tensor.name: _tensor_type(tensor) for tensor in graph.initializer}
        return replace(
            self,
            types={**self.types, **types, **(inputs or {})},
            tensors=(*self.tensors, *small),
        )

    def end_types(
        self, graph: onnx.GraphProto, inputs: Types | None = None
    ) -> list[onnx.TypeProto]:
        """The types of the outputs of a graph: inferred, else as it declares them."""
        scope, inferred = self.within(graph, inputs), list[onnx.NodeProto]()
        for node in graph.node:
            rule, large = _rule_for(node), _large_constant(node)
            if large is not None:
                scope = scope.with_types({node.output[0]: _tensor_type(large)})
            elif rule is not None:
                scope = scope.inferring(inferred)
                scope = scope.with_types(rule(scope, node))
            else:
                inferred.append(node)
        types = scope.inferring(inferred).types
        ends = ((types.get(end.name), end.type) for end in graph.output)
        return [end if end is not None and _has_rank(end) else other for end, other in ends]

    def with_types(self, types: Types) -> _Scope:
        return replace(self, types={**self.types, **types})

    def inferring(self, nodes: Sequence[onnx.NodeProto]) -> _Scope:
        """The scope with the types that ONNX infers for the results of nodes."""
        if next(self.inferences, None) is None:
            raise RuntimeError(f"its loops need more than {MOST_INFERENCES} inferences")
        read = {name for node in nodes for name in names_read_by(node)}
        tensors = {tensor.name: tensor for tensor in self.tensors if tensor.name in read}
        inputs = [
            onnx.ValueInfoProto(name=name, type=kind)
            for name, kind in self.types.items()
            if name in read and name not in tensors
        ]
        graph = helper.make_graph(nodes, "trip", inputs, [], list(tensors.values()))
        model = onnx.ModelProto(ir_version=max(self.model.ir_version, 4), graph=graph)
        model.opset_import.extend(self.model.opset_import)
        infos = infer(model, data_prop=True).graph.value_info
        return self.with_types({info.name: info.type for info in infos})


def _loop_types(scope: _Scope, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    body = next(a.g for a in node.attribute if a.name == "body")
    first = [scope.types.get(name) for name in node.input[2:]]
    carried = [kind for kind in first if kind is not None and _has_rank(kind)]
    if len(carried) != len(body.input) - 2:
        return {}
    names = [info.name for info in body.input]
    numbers = [info.type for info in body.input[:2]]
    while True:
        inputs = dict(zip(names, [*numbers, *carried], strict=True))
        ends = scope.end_types(body, inputs)[1:]
        pairs = zip(carried, ends, strict=False)
        wider = [kind for kind in (_join(*pair) for pair in pairs) if kind is not None]
        if len(wider) < len(carried):
            return {}
        if wider == carried:
            break
        carried = wider
    stacked = [_stack(kind) for kind in ends[len(carried) :] if _has_rank(kind)]
    kinds = [*carried, *stacked]
    if len(kinds) < len(ends):
        return {}
    return {name: kind for name, kind in zip(node.output, kinds, strict=False) if name}


def _branch_types(scope: _Scope, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The types of an If, of which each branch may be taken."""
    branches = [scope.end_types(attribute.g) for attribute in node.attribute]
    joined = (_join(*pair) for pair in zip(*branches, strict=True))
    pairs = zip(node.output, joined, strict=True)
    return {name: kind for name, kind in pairs if kind is not None}


_Rule = Callable[[_Scope, onnx.NodeProto], dict[str, onnx.TypeProto]]

_RULES: dict[str, _Rule] = {"Loop": _loop_types, "If": _branch_types}
"""The types of results of operators that have subgraphs, by operator."""


def _rule_for(node: onnx.NodeProto) -> _Rule | None:
    """The rule of a node that is a Loop or has one inside."""
    has_loop = any(map(_is_loop, all_nodes([node])))
    return _RULES.get(node.op_type) if has_loop and node.domain in ("", "ai.onnx") else None


def _is_loop(node: onnx.NodeProto) -> bool:
    return (node.domain or "ai.onnx", node.op_type) == ("ai.onnx", "Loop")


def _large_constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value of a Constant that decides no shape."""
    if node.op_type != "Constant" or node.domain or node.ByteSize() <= MOST_NBYTES:
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _tensor_type(tensor: onnx.TensorProto) -> onnx.TypeProto:
    kind: onnx.TypeProto = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return kind


def _has_rank(kind: onnx.TypeProto) -> bool:
    return bool(kind.HasField("tensor_type") and kind.tensor_type.HasField("shape"))


def _dims(kind: onnx.TypeProto) -> list[int | None]:
    """The sizes that are known; a name stands for another size in each trip."""
    dims = kind.tensor_type.shape.dim
    return [int(d.dim_value) if d.HasField("dim_value") else None for d in dims]


def _join(one: onnx.TypeProto, other: onnx.TypeProto) -> onnx.TypeProto | None:
    """The type of values that are of either type; None for other element types or ranks."""
    sizes = _dims(one), _dims(other)
    is_alike = one.tensor_type.elem_type == other.tensor_type.elem_type
    if not (_has_rank(one) and _has_rank(other) and is_alike) or len(sizes[0]) != len(sizes[1]):
        return None
    return _of_dims(one, (a if a == b else None for a, b in zip(*sizes, strict=True)))


def _stack(kind: onnx.TypeProto) -> onnx.TypeProto:
    """The type of values of all trips."""
    return _of_dims(kind, [None, *_dims(kind)])


def _of_dims(kind: onnx.TypeProto, dims: Iterable[int | None]) -> onnx.TypeProto:
    wide: onnx.TypeProto = helper.make_tensor_type_proto(kind.tensor_type.elem_type, list(dims))
    return wide
