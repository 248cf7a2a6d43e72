"""Sequences and optionals whose items are values of the model, and operators on them.

Exporters write lists of tensors so: a Split that gives a sequence, a Concat that takes one.  Where
it is known which value is at which place, an operator on a sequence chooses values, or it is an
ordinary one on the items.  Other sequences are opaque values, see ``external``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.context import Call, ImportScope, qualify
from quantglow.importer.onnx.nodes.values import (
    Foreign,
    ItemsValue,
    KnownSizes,
    KnownValue,
    ObjectValue,
    Value,
    value_onnx_type,
    value_shape,
)

MOST_ITEMS = 256
"""Maximum number of items of a sequence that a tensor is split into."""

Resolve = Callable[[onnx.NodeProto, ImportScope], dict[str, Value]]
"""Imports another node."""

Rule = Callable[[Call, Resolve], Value | None]
"""The value of a node; None where it is not known what its operands hold."""


def by_items(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """The value of an operator on sequences or optionals, if their items are known; else None."""
    rule = _RULES.get(qualify(proto))
    value = None if rule is None else rule(Call(proto, scope), resolve)
    return None if value is None else {proto.output[0]: value}


def _construct(call: Call, resolve: Resolve) -> Value | None:
    return _sequence(call, tuple(call.proto.input))


def _empty(call: Call, resolve: Resolve) -> Value | None:
    return ItemsValue(call.proto, ())


def _insert(call: Call, resolve: Resolve) -> Value | None:
    items = _items(call)
    place = _place(call, 2, len(items)) if items is not None else None
    if items is None or place is None or not 0 <= place <= len(items):
        return None
    return _sequence(call, (*items[:place], call.value_name(1), *items[place:]))


def _erase(call: Call, resolve: Resolve) -> Value | None:
    items = _items(call)
    place = _place(call, 1, len(items) - 1) if items else None
    if not items or place is None or not 0 <= place < len(items):
        return None
    others = (*items[:place], *items[place + 1 :])
    if others:
        return _sequence(call, others)
    dtype = value_onnx_type(call.scope.values[items[0]])
    maker = onnx.helper.make_node("SequenceEmpty", [], call.proto.output[:1], dtype=dtype)
    return ItemsValue(maker, ())


def _at(call: Call, resolve: Resolve) -> Value | None:
    items = _items(call)
    place = _place(call, 1, 0) if items else None
    if not items or place is None or not 0 <= place < len(items):
        return None
    return call.scope.values[items[place]]


def _length(call: Call, resolve: Resolve) -> Value | None:
    items = _items(call)
    return None if items is None else KnownValue(call.proto.output[0], np.array(len(items)))


def _concat(call: Call, resolve: Resolve) -> Value | None:
    items, axis = _items(call), call.integer("axis", 0)
    if not items:
        return None
    if call.integer("new_axis", 0):
        axes = _constant(call, "axes", [axis])
        items = tuple(
            _name(call, f"item{i}", resolve, "Unsqueeze", [item, axes])
            for i, item in enumerate(items)
        )
    concat = onnx.helper.make_node("Concat", items, call.proto.output[:1], axis=axis)
    return resolve(concat, call.scope)[call.proto.output[0]]


def _split(call: Call, resolve: Resolve) -> Value | None:
    sizes, axis = _part_sizes(call), call.integer("axis", 0)
    if sizes is None:
        return None
    parts = [_fresh(call, f"part{i}") for i in range(len(sizes))]
    operands = [call.value_name(0), _constant(call, "sizes", sizes)]
    split = onnx.helper.make_node("Split", operands, parts, axis=axis)
    call.scope.values.update(resolve(split, call.scope))
    if not call.has(1) and not call.integer("keepdims", 1):
        axes = _constant(call, "axes", [axis])
        parts = [
            _name(call, f"item{i}", resolve, "Squeeze", [part, axes])
            for i, part in enumerate(parts)
        ]
    return _sequence(call, tuple(parts))


def _part_sizes(call: Call) -> list[int] | None:
    """The sizes of the parts that a tensor is split into; None where they are not known, or are too
    many."""
    shape, axis = value_shape(call.value(0)), call.integer("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    if not isinstance(size, int):
        return None
    sizes = [1] * size
    if call.has(1):
        split = call.value(1)
        if not isinstance(split, KnownValue) or isinstance(split, KnownSizes):
            return None
        sizes = split.array.reshape(-1).tolist()
        if not split.array.ndim and sizes[0] > 0:
            step = sizes[0]
            sizes = [min(step, size - start) for start in range(0, size, step)]
    is_whole = sum(sizes) == size and min(sizes, default=0) > 0
    return sizes if is_whole and len(sizes) <= MOST_ITEMS else None


def _optional(call: Call, resolve: Resolve) -> Value | None:
    return ItemsValue(call.proto, tuple(filter(None, call.proto.input)))


def _get(call: Call, resolve: Resolve) -> Value | None:
    value = call.value(0)
    if isinstance(value, ItemsValue) and value.maker.op_type == "Optional":
        return call.scope.values[value.items[0]] if value.items else None
    return None if isinstance(value, ObjectValue | Foreign) else value


def _has(call: Call, resolve: Resolve) -> Value | None:
    value = call.value(0) if call.has(0) else None
    if isinstance(value, ObjectValue | Foreign):
        return None
    has_element = value is not None
    if isinstance(value, ItemsValue) and value.maker.op_type == "Optional":
        has_element = bool(value.items)
    return KnownValue(call.proto.output[0], np.array(has_element))


_RULES: dict[str, Rule] = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}


def _items(call: Call) -> tuple[str, ...] | None:
    """The names of the items of the first operand, None where they are not known."""
    value = call.value(0)
    return value.items if isinstance(value, ItemsValue) else None


def _sequence(call: Call, items: Sequence[str]) -> ItemsValue | None:
    """The sequence of some values; None where one of them was refused."""
    if any(isinstance(call.scope.values[name], Foreign) for name in items):
        return None
    maker = onnx.helper.make_node("SequenceConstruct", items, call.proto.output[:1])
    return ItemsValue(maker, tuple(items))


def _place(call: Call, position: int, default: int) -> int | None:
    """A place in the sequence that the first operand is, counted from its front; None where it is
    computed."""
    if not call.has(position):
        return default
    value = call.value(position)
    if not isinstance(value, KnownValue) or isinstance(value, KnownSizes) or value.array.size != 1:
        return None
    place = int(value.array.reshape(()))
    return place + len(_items(call) or ()) if place < 0 else place


def _fresh(call: Call, tag: str) -> str:
    """A name that no value has."""
    name = f"{call.proto.output[0]}:{tag}"
    while name in call.scope.values or name in call.scope.reserved:
        name += "'"
    return name


def _constant(call: Call, tag: str, integers: Sequence[int]) -> str:
    """The name of known integers."""
    name = _fresh(call, tag)
    call.scope.values[name] = KnownValue(name, np.array(integers, np.int64))
    return name


def _name(call: Call, tag: str, resolve: Resolve, op_type: str, operands: Sequence[str]) -> str:
    """The name of the result of an operator."""
    name = _fresh(call, tag)
    call.scope.values.update(resolve(onnx.helper.make_node(op_type, operands, [name]), call.scope))
    return name
