"""Nodes on known integers of which some are free sizes: the arithmetic of shapes.

``onnx.reference`` cannot evaluate them.  The operators here are those by which exporters compute
shapes; one without an importer has them as operands at run time; any other one gets the sizes of
the shape at hand, by a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import IMPORTERS, Call, Scope, qualified
from quantglow.frontend.nodes.values import Known, Sizes, Value
from quantglow.symbolic.shapes import has_free, integers
from quantglow.symbolic.size import Size, constant_or_size, maximum, minimum

INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

Compute = Callable[[Call, Sequence[Array]], Array]


def with_free_sizes(
    proto: onnx.NodeProto, scope: Scope, resolve: object
) -> dict[str, Value] | None:
    """The value of a node of known operands, some of which are free; None for other nodes."""
    operands = [scope.values[name] for name in proto.input if name]
    if not any(isinstance(value, Sizes) for value in operands):
        return None
    compute = _COMPUTE.get(proto.op_type)
    if compute is not None and all(isinstance(value, Known) for value in operands):
        arrays = [value.array for value in operands if isinstance(value, Known)]
        result = compute(Call(proto, scope), arrays)
        if result is not None:
            found = settled(result)
            exclude_ones(partial(compute, Call(proto, scope)), arrays, found)
            return {proto.output[0]: known_value(proto.output[0], found)}
    is_late = any(not isinstance(value, Known) for value in operands)
    if is_late and (proto.op_type in _AT_RUN_TIME or qualified(proto) not in IMPORTERS):
        return None
    if proto.op_type in _READERS:
        return None
    for name in proto.input:
        value = scope.values.get(name)
        if isinstance(value, Sizes):
            scope.values[name] = value.fixed()
    return None


def exclude_ones(
    compute: Callable[[Sequence[Array]], Any], arrays: Sequence[Array], found: Array
) -> None:
    """Record of each symbol that it is not 1, if the result would not be the one found there.

    Sizes are simplified for dimensions of 2 or more: ``min(N, 2)`` is 2, ``1 // N`` is 0.
    """
    sizes = [value for array in arrays for value in array.reshape(-1) if isinstance(value, Size)]
    for name in frozenset[str]().union(*(size.expression.names for size in sizes)):
        guards = sizes[0].guards
        values = {**guards.hints, name: 1}
        try:
            own = compute([at(array, values) for array in arrays])
            is_alike = np.array_equal(own, at(found, values))
        except ArithmeticError:
            is_alike = False
        if not is_alike:
            guards.exclude_one(name)


def at(array: Array, values: Mapping[str, int]) -> Array:
    """The integers for values of all symbols."""
    if array.dtype != object:
        return array
    parts = [v.expression.at(values) if isinstance(v, Size) else v for v in array.reshape(-1)]
    return np.array(parts, np.int64).reshape(array.shape)


def settled(array: Array) -> Array:
    """The sizes with those that have one value only as integers."""
    return integers(np.frompyfunc(constant_or_size, 1, 1)(array)) if has_free(array) else array


def known_value(name: str, array: Array) -> Known:
    """A known value, of which some elements may be free."""
    return Sizes(name, array) if has_free(array) else Known(name, array)


def _elementwise(function: Callable[[Any, Any], Any]) -> Compute:
    def compute(call: Call, arrays: Sequence[Array]) -> Array:
        apply = np.frompyfunc(function, 2, 1)
        return integers(reduce(apply, (a.astype(object) for a in arrays)))

    return compute


def _quotient(a: int, b: int) -> int:
    """Rounded towards 0, as ONNX does."""
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def _gather(call: Call, arrays: Sequence[Array]) -> Array | None:
    if has_free(arrays[1]):
        return None
    return np.asarray(np.take(arrays[0], arrays[1], axis=call.integer("axis", 0)))


def _concat(call: Call, arrays: Sequence[Array]) -> Array:
    return integers(np.concatenate(arrays, axis=call.integer("axis", 0)))


def _unsqueeze(call: Call, arrays: Sequence[Array]) -> Array:
    return np.expand_dims(arrays[0], call.parameter("axes", 1) or ())


def _squeeze(call: Call, arrays: Sequence[Array]) -> Array:
    return np.squeeze(arrays[0], call.parameter("axes", 1))


def _slice(call: Call, arrays: Sequence[Array]) -> Array | None:
    if any(map(has_free, arrays[1:])):
        return None
    starts, ends = call.parameter("starts", 1) or (), call.parameter("ends", 2) or ()
    axes = call.parameter("axes", 3) or tuple(range(len(starts)))
    steps = call.parameter("steps", 4) or (1,) * len(starts)
    index = [slice(None)] * arrays[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return integers(arrays[0][tuple(index)])


def _cast(call: Call, arrays: Sequence[Array]) -> Array | None:
    return arrays[0] if call.integer("to", 0) in INTEGERS else None


def _reshape(call: Call, arrays: Sequence[Array]) -> Array | None:
    return None if has_free(arrays[1]) else arrays[0].reshape(arrays[1].tolist())


def _product(call: Call, arrays: Sequence[Array]) -> Array | None:
    if arrays[0].ndim > 1:
        return None
    found = math.prod(arrays[0].reshape(-1).tolist())
    return integers(
        np.full((1,) * arrays[0].ndim if call.integer("keepdims", 1) else (), found, object)
    )


def _where(call: Call, arrays: Sequence[Array]) -> Array:
    return integers(np.where(*arrays))


def _equal(call: Call, arrays: Sequence[Array]) -> Array:
    apply = np.frompyfunc(lambda a, b: bool(a == b), 2, 1)
    return np.asarray(apply(*(a.astype(object) for a in arrays)), bool)


_COMPUTE: Mapping[str, Compute | Callable[..., Array | None]] = {
    "Add": _elementwise(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _elementwise(_quotient),
    "Equal": _equal,
    "Gather": _gather,
    "Identity": lambda call, arrays: arrays[0],
    "Max": _elementwise(lambda a, b: maximum((a, b))),
    "Min": _elementwise(lambda a, b: minimum((a, b))),
    "Mul": _elementwise(lambda a, b: a * b),
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(lambda a, b: a - b),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}

_READERS = frozenset(
    {
        *("ConstantOfShape", "Expand", "GroupQueryAttention", "Loop", "Pad", "Range", "Reshape"),
        *("Resize", "Shape", "Size", "Slice", "Split", "Tile", "Upsample"),
    }
)
"""Operators whose importers take free sizes."""

_AT_RUN_TIME = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mul", "Sub", "Where"),
    }
)
"""Operators for which a free size is a value as any other, if another operand is not known."""
