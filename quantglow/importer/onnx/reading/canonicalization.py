"""Canonical form of a model: functions inlined, tensors dense, nodes in order.

Functions that call functions can double the nodes with each level, so the nodes are counted before
any is made.  ONNX's inliner leaves no trace of a call, whose name and operator the user knows: the
calls are noted at the nodes that take their place.

Sparse tensors are sparse initializers, and Constants with ``sparse_value``.  Nodes come in the
order of their values, as ONNX wants them: some tools append what they insert.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.nodes.values import note_calls, tensor_array
from quantglow.importer.onnx.reading.proto import MAX_NBYTES, TOO_LARGE, all_nodes, every_node
from quantglow.support.errors import ModelError

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""

Defaults = dict[str, onnx.AttributeProto]
"""Attributes by name."""

MAX_DEPTH = 16
"""Maximum number of calls that are noted of one node, the innermost first."""

Calls = tuple[onnx.NodeProto, ...]

SPARSE = "sparse_value"
MOST_NBYTES = 2**28
"""Maximum number of bytes of all dense tensors: a small file may name huge ones."""

Unsorted = list[tuple[Any, list[int]]]
"""Lists of nodes, and the positions of their nodes in order."""


@dataclass(frozen=True)
class GraphSize:
    """Nodes, those of subgraphs included, and bytes."""

    nodes: int
    nbytes: int

    def __add__(self, other: GraphSize) -> GraphSize:
        return GraphSize(self.nodes + other.nodes, self.nbytes + other.nbytes)

    def __mul__(self, times: int) -> GraphSize:
        return GraphSize(self.nodes * times, self.nbytes * times)


def check_growth(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` if inlining would not end, or make more than the import may have."""
    if not proto.functions:
        return
    sizes = _inlined_sizes({_function_key(f): f for f in proto.functions}, origin)
    meter = Meter()
    total = GraphSize(0, proto.ByteSize())
    for node in all_nodes(proto.graph.node):
        total += sizes.get(_call_key(node), GraphSize(1, 0))
        if total.nodes > meter.budget.nodes:
            meter.node = node
            raise meter.exceeded(
                "nodes",
                f"{origin}: with its local functions inlined the model has more than "
                f"{meter.budget.nodes:.0f} nodes",
            )
    if total.nbytes > MAX_NBYTES:
        raise ModelError(f"{origin}: with its local functions inlined {TOO_LARGE}")


def _inlined_sizes(
    functions: Mapping[Key, onnx.FunctionProto], origin: str
) -> dict[Key, GraphSize]:
    """Sizes of functions with all that they call.  Raises ``ModelError`` for recursion."""
    calls = {
        key: Counter(_call_key(node) for node in all_nodes(function.node))
        for key, function in functions.items()
    }
    waits = {key: sum(name in functions for name in called) for key, called in calls.items()}
    callers = defaultdict(list)
    for key, called in calls.items():
        for name in called.keys() & functions.keys():
            callers[name].append(key)
    sizes: dict[Key, GraphSize] = {}
    ready = [key for key, count in waits.items() if not count]
    while ready:
        key = ready.pop()
        size = GraphSize(0, functions[key].ByteSize())
        parts = (sizes.get(name, GraphSize(1, 0)) * n for name, n in calls[key].items())
        sizes[key] = _cap(sum(parts, size))
        for caller in callers[key]:
            waits[caller] -= 1
            if not waits[caller]:
                ready.append(caller)
    if endless := functions.keys() - sizes.keys():
        raise ModelError(f"{origin}: the local functions {names(endless)} call themselves")
    return sizes


def with_defaults(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose calls of local functions have the attributes that these have defaults for."""
    defaults = _collect_defaults(proto)
    if not any(defaults.values()):
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for node in every_node(model):
        stated = {attribute.name for attribute in node.attribute}
        function_defaults = defaults.get(_call_key(node), {})
        node.attribute.extend(
            value for name, value in function_defaults.items() if name not in stated
        )
    return model


def _collect_defaults(proto: onnx.ModelProto) -> dict[Key, Defaults]:
    """The defaults of local functions.  An attribute that a function only passes on has the default
    that it has there."""
    functions = {_function_key(function): function for function in proto.functions}
    defaults: dict[Key, Defaults] = {}
    for key in _inlined_sizes(functions, "the model"):  # Functions come before their callers.
        attributes = defaults[key] = {a.name: a for a in functions[key].attribute_proto}
        passed = _forwarded_calls(functions[key])
        for name in functions[key].attribute:
            values = [defaults.get(called, {}).get(inner) for called, inner in passed.get(name, ())]
            if value := _the_same(values):
                attributes[name] = onnx.AttributeProto()
                attributes[name].CopyFrom(value)
                attributes[name].name = name
    return defaults


def _forwarded_calls(function: onnx.FunctionProto) -> Mapping[str, list[tuple[Key, str]]]:
    """For each attribute of a function the operators that get it, and its names there."""
    receivers = defaultdict(list)
    for node in all_nodes(function.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                receivers[attribute.ref_attr_name].append((_call_key(node), attribute.name))
    return receivers


def _the_same(values: Sequence[onnx.AttributeProto | None]) -> onnx.AttributeProto | None:
    """The value that all have in common, but for their names; None without one."""
    texts = set()
    for value in values:
        if value is None:
            return None
        copy = onnx.AttributeProto()
        copy.CopyFrom(value)
        copy.ClearField("name")
        texts.add(copy.SerializeToString(deterministic=True))
    return values[0] if len(texts) == 1 else None


def _cap(size: GraphSize) -> GraphSize:
    """Numbers that stay short however many levels double them."""
    return GraphSize(min(size.nodes, 2**62), min(size.nbytes, 2**62))


def _function_key(function: onnx.FunctionProto) -> Key:
    return _standard(function.domain), function.name, function.overload


def _call_key(node: onnx.NodeProto) -> Key:
    return _standard(node.domain), node.op_type, node.overload


def _standard(domain: str) -> str:
    """The standard domain has two names."""
    return "" if domain == "ai.onnx" else domain


def names(keys: Iterable[Key]) -> list[str]:
    return sorted(f"{domain}.{name}" for domain, name, _ in keys)


def with_functions_inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions; their nodes tell which calls they are from."""
    inlined = onnx.inliner.inline_local_functions(proto)
    functions = {_function_key(function): function for function in proto.functions}
    waiting: list[tuple[Sequence[onnx.NodeProto], Sequence[onnx.NodeProto], Calls]]
    waiting = [(proto.graph.node, inlined.graph.node, ())]
    while waiting:
        before, after, outer = waiting.pop()
        for (node, calls), copy in zip(_expansion(before, functions, outer), after, strict=False):
            if node.op_type != copy.op_type:
                break  # An inliner that adds nodes: the rest is known by its own names.
            if calls:
                note_calls(copy, (node, *calls) if node.name else calls)
            pairs = zip(_graphs_in(node), _graphs_in(copy), strict=False)
            waiting += [(one.node, other.node, calls) for one, other in pairs]
    return inlined


def _expansion(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[Key, onnx.FunctionProto], outer: Calls
) -> Iterator[tuple[onnx.NodeProto, Calls]]:
    """The nodes with those of the functions that they call in their places, and the calls."""
    waiting = [(iter(nodes), outer)]
    while waiting:
        inner, calls = waiting[-1]
        if (node := next(inner, None)) is None:
            waiting.pop()
        elif (function := functions.get(_call_key(node))) is not None:
            waiting.append((iter(function.node), (node, *calls)[:MAX_DEPTH]))
        else:
            yield node, calls


def _graphs_in(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node."""
    return [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]


def with_dense_tensors(proto: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """The model, or a copy of it without sparse tensors.

    Raises ``ModelError`` for those that are malformed, or too large when dense.
    """
    in_nodes = any(_is_sparse(node, each) for node in every_node(proto) for each in node.attribute)
    if not in_nodes and not any(graph.sparse_initializer for graph in _every_graph(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    room = MOST_NBYTES
    for graph in _every_graph(copy):
        for sparse in graph.sparse_initializer:
            dense = _dense_tensor(sparse, origin, room)
            room -= len(dense.raw_data)
            graph.initializer.append(dense)
        graph.ClearField("sparse_initializer")
    for node in every_node(copy):
        for attribute in node.attribute:
            if _is_sparse(node, attribute):
                dense = _dense_tensor(attribute.sparse_tensor, origin, room)
                room -= len(dense.raw_data)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
    return copy


def _is_sparse(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute is the value of a Constant, and not a name of a function's attribute."""
    has_tensor = attribute.name == SPARSE and attribute.HasField("sparse_tensor")
    return has_tensor and node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def _every_graph(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and all subgraphs."""
    yield proto.graph
    for node in every_node(proto):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _dense_tensor(sparse: onnx.SparseTensorProto, origin: str, room: int) -> onnx.TensorProto:
    """A tensor of ``room`` bytes at most.  Raises ``ModelError``."""
    name, dims = sparse.values.name, tuple(sparse.dims)
    try:
        onnx.checker.check_sparse_tensor(sparse)
    except onnx.checker.ValidationError as error:
        raise _malformation(origin, name, " ".join(str(error).split())) from None
    values, places = tensor_array(sparse.values), tensor_array(sparse.indices)
    if values.dtype.kind not in "biuf" or places.dtype != np.int64:
        raise _malformation(origin, name, "its values are no numbers, or its indices no int64")
    if math.prod(max(size, 1) for size in dims) * values.itemsize > room:
        raise _malformation(origin, name, f"of shape {dims} it is too large when dense")
    dense = np.zeros(math.prod(dims), values.dtype)
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), dims)
    dense[flat] = values
    return numpy_helper.from_array(dense.reshape(dims), name)


def _malformation(origin: str, name: str, problem: str) -> ModelError:
    return ModelError(
        f"{origin}: the sparse tensor {name!r} is malformed: {problem}. Remedy: store it as a "
        "dense tensor."
    )


def sort_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each graph's nodes behind those that they read, else in their order.

    It is the same object if they are so already.  Nodes in a cycle stay where they are.
    """
    try:
        if not _unsorted(proto):
            return proto
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        for nodes, order in _unsorted(copy):
            moved = [onnx.NodeProto() for _ in order]
            for node, position in zip(moved, order, strict=True):
                node.CopyFrom(nodes[position])
            del nodes[:]
            nodes.extend(moved)
        return copy
    except (RecursionError, DecodeError):  # The checker refuses branches in so many others.
        return proto


def _unsorted(proto: onnx.ModelProto) -> Unsorted:
    """The lists of nodes that are not in order, those of inner graphs first."""
    lists: Unsorted = []
    for nodes in (*(function.node for function in proto.functions), proto.graph.node):
        _read_outside(nodes, (), lists)
    return lists


def _read_outside(
    nodes: Sequence[onnx.NodeProto], defined: Iterable[str], lists: Unsorted
) -> set[str]:
    """The values that nodes read and neither make nor are ``defined``; adds to ``lists``."""
    reads = [_read_by(node, lists) for node in nodes]
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in operands if name in makers} for operands in reads]
    if (order := _topological_order(needs)) is not None:
        lists.append((nodes, order))
    return set().union(*reads) - makers.keys() - set(defined)


def _read_by(node: onnx.NodeProto, lists: Unsorted) -> set[str]:
    """The values that a node reads, in its subgraphs, too."""
    reads = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            if graph.node or graph.output:
                defined = {value.name for value in graph.input}
                defined |= {weights.name for weights in graph.initializer}
                reads |= _read_outside(graph.node, defined, lists)
                computed = {name for inner in graph.node for name in inner.output}
                reads |= {end.name for end in graph.output} - computed - defined
    return reads


def _topological_order(needs: Sequence[set[int]]) -> list[int] | None:
    """Positions so that each comes behind those that it needs; None where they are so, or cannot
    be.
    """
    if all(max(makers, default=-1) < i for i, makers in enumerate(needs)):
        return None
    # Kahn's algorithm with a heap: of the nodes that are ready the first one comes first, so nodes
    # that need not move stay in their order.
    readers: list[list[int]] = [[] for _ in needs]
    for i, makers in enumerate(needs):
        for maker in makers:
            readers[maker].append(i)
    missing = list(map(len, needs))
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order if len(order) == len(needs) else None
