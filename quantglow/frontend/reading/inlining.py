"""The size of a model whose local functions are put where they are called.

Functions that call functions can double the nodes with each level, so the nodes are counted before
any is made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from quantglow.errors import ModelError
from quantglow.frontend.budget import Meter
from quantglow.frontend.reading.proto import MAX_NBYTES, TOO_LARGE, all_nodes, every_node

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""

Defaults = dict[str, onnx.AttributeProto]
"""Attributes by name."""


@dataclass(frozen=True)
class Size:
    """Nodes, those of subgraphs included, and bytes."""

    nodes: int
    nbytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.nodes + other.nodes, self.nbytes + other.nbytes)

    def __mul__(self, times: int) -> Size:
        return Size(self.nodes * times, self.nbytes * times)


def check_growth(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` if inlining would not end, or make more than the import may have."""
    if not proto.functions:
        return
    sizes = inlined_sizes({key_of(f): f for f in proto.functions}, origin)
    meter = Meter()
    total = Size(0, proto.ByteSize())
    for node in all_nodes(proto.graph.node):
        total += sizes.get(called_by(node), Size(1, 0))
        if total.nodes > meter.budget.nodes:
            meter.node = node
            raise meter.exceeded(
                "nodes",
                f"{origin}: with its local functions inlined the model has more than "
                f"{meter.budget.nodes:.0f} nodes",
            )
    if total.nbytes > MAX_NBYTES:
        raise ModelError(f"{origin}: with its local functions inlined {TOO_LARGE}")


def inlined_sizes(functions: Mapping[Key, onnx.FunctionProto], origin: str) -> dict[Key, Size]:
    """Sizes of functions with all that they call.  Raises ``ModelError`` for recursion."""
    calls = {
        key: Counter(called_by(node) for node in all_nodes(function.node))
        for key, function in functions.items()
    }
    waits = {key: sum(name in functions for name in called) for key, called in calls.items()}
    callers = defaultdict(list)
    for key, called in calls.items():
        for name in called.keys() & functions.keys():
            callers[name].append(key)
    sizes: dict[Key, Size] = {}
    ready = [key for key, count in waits.items() if not count]
    while ready:
        key = ready.pop()
        own = Size(0, functions[key].ByteSize())
        parts = (sizes.get(name, Size(1, 0)) * n for name, n in calls[key].items())
        sizes[key] = capped(sum(parts, own))
        for caller in callers[key]:
            waits[caller] -= 1
            if not waits[caller]:
                ready.append(caller)
    if endless := functions.keys() - sizes.keys():
        raise ModelError(f"{origin}: the local functions {names(endless)} call themselves")
    return sizes


def with_defaults(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose calls of local functions have the attributes that these have defaults for."""
    defaults = defaults_of(proto)
    if not any(defaults.values()):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for node in every_node(made):
        given = {attribute.name for attribute in node.attribute}
        own = defaults.get(called_by(node), {})
        node.attribute.extend(value for name, value in own.items() if name not in given)
    return made


def defaults_of(proto: onnx.ModelProto) -> dict[Key, Defaults]:
    """The defaults of local functions.  An attribute that a function only passes on has the default
    that it has there."""
    functions = {key_of(function): function for function in proto.functions}
    found: dict[Key, Defaults] = {}
    for key in inlined_sizes(functions, "the model"):  # Functions come before their callers.
        own = found[key] = {a.name: a for a in functions[key].attribute_proto}
        passed = passed_on(functions[key])
        for name in functions[key].attribute:
            values = [found.get(called, {}).get(inner) for called, inner in passed.get(name, ())]
            if value := the_same(values):
                own[name] = onnx.AttributeProto()
                own[name].CopyFrom(value)
                own[name].name = name
    return found


def passed_on(function: onnx.FunctionProto) -> Mapping[str, list[tuple[Key, str]]]:
    """For each attribute of a function the operators that get it, and its names there."""
    found = defaultdict(list)
    for node in all_nodes(function.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                found[attribute.ref_attr_name].append((called_by(node), attribute.name))
    return found


def the_same(values: Sequence[onnx.AttributeProto | None]) -> onnx.AttributeProto | None:
    """The value that all are, but for their names; None if there is no such."""
    texts = set()
    for value in values:
        if value is None:
            return None
        copy = onnx.AttributeProto()
        copy.CopyFrom(value)
        copy.ClearField("name")
        texts.add(copy.SerializeToString(deterministic=True))
    return values[0] if len(texts) == 1 else None


def capped(size: Size) -> Size:
    """Numbers that stay short however many levels double them."""
    return Size(min(size.nodes, 2**62), min(size.nbytes, 2**62))


def key_of(function: onnx.FunctionProto) -> Key:
    return standard(function.domain), function.name, function.overload


def called_by(node: onnx.NodeProto) -> Key:
    return standard(node.domain), node.op_type, node.overload


def standard(domain: str) -> str:
    """The standard domain has two names."""
    return "" if domain == "ai.onnx" else domain


def names(keys: Iterable[Key]) -> list[str]:
    return sorted(f"{domain}.{name}" for domain, name, _ in keys)
