"""Ranges: indices that count along an axis; Range and Slice at computed positions.

Exporters read masks by grids of indices: ``x[i, j]`` for all i and j is x itself, with axes
between.

``x[i : min(i + 1, N)]`` and ``range(i, min(i + 1, N))``, as exporters write an assignment to
element i in a loop, are a look-up of element i: for an i in range they have the length 1.  For any
other i they would be empty, which no type allows: then the look-up raises ``OutOfRangeError`` at
run time.  Outside of loops they are left to onnxruntime, which computes shorter ones, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, importer
from quantglow.importer.onnx.operators.tensor.shape import normal, sequence
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Expand, Reshape, Slice
from quantglow.ir.ops.binary import Add
from quantglow.ir.ops.expression import Expr, arg, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.symbolic.size import (
    Shape,
    Size,
    decide,
    decide_equal,
    likely,
    surely_equal,
)
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

LARGEST = 2**24
"""Largest integer up to which all are exact as float32."""

LONGEST = 4096
"""Maximum length of a span."""

CASTS = ("float", "int32", "int64")


def counted_axes(indices: Node, sizes: Shape) -> list[int] | None:
    """For each coordinate in the last axis of ``indices`` the axis along which it counts all of an
    axis of these sizes, in ascending order; None for other indices.

    Free sizes that are equal at the shape at hand, as a mask's and that of keys with a cache, are
    equal by a guard.
    """
    outer = indices.type.shape[:-1]
    counted: list[int] = []
    for number, size in enumerate(sizes):
        after = counted[-1] if counted else -1
        axes = (axis for axis in _coordinate_axes(indices, number) if axis > after)
        fitting = next((axis for axis in axes if likely(outer[axis]) == likely(size)), None)
        if fitting is None:
            return None
        counted.append(fitting)
    is_all = all(decide(outer[a] == size) for a, size in zip(counted, sizes, strict=True))
    return counted if is_all else None


def _coordinate_axes(indices: Node, number: int) -> list[int]:
    """The axes along which a coordinate counts from 0; of size 1, any does."""
    if isinstance(indices, Constant):  # its last axis is taken away, that of a Concat is not
        return _axes_of_array(indices.value[..., number])
    last = indices.type.rank - 1
    if not isinstance(indices, Concat) or indices.axis != last:
        return []
    if any(decide(part.type.shape[last] != 1) for part in indices.parts):
        return []
    return [axis for axis in _index_axes(indices.parts[number]) if axis != last]


def _index_axes(node: Node) -> list[int]:
    """The axes along which a tensor counts from 0, equal along all others."""
    shape = node.type.shape
    match node:
        case Constant():
            return _axes_of_array(node.value)
        case Slice(x=x, starts=starts, steps=steps):
            rank = len(shape)
            is_begin = surely_equal(starts, (0,) * rank) and surely_equal(steps, (1,) * rank)
            return _index_axes(x) if is_begin else []
        case Expand(x=x):
            added = len(shape) - x.type.rank
            axes = [(axis, axis + added) for axis in _index_axes(x)]
            sizes = x.type.shape
            return [new for old, new in axes if surely_equal((sizes[old],), (shape[new],))]
        case Reshape(x=x):
            before, after = _longer_axes(x.type.shape), _longer_axes(shape)
            if not surely_equal(_sizes_at(x.type.shape, before), _sizes_at(shape, after)):
                return []
            return [after[before.index(axis)] for axis in _index_axes(x) if axis in before]
    return []


def _axes_of_array(array: Array) -> list[int]:
    """``_index_axes`` of known integers."""
    if array.dtype.kind not in "iu" or not array.size:
        return []
    numbers = (np.arange(size) for size in array.shape)
    places = (
        n.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        for axis, n in enumerate(numbers)
    )
    return [axis for axis, place in enumerate(places) if (array == place).all()]


def _longer_axes(shape: Shape) -> list[int]:
    """The axes that are not 1."""
    return [axis for axis, size in enumerate(shape) if decide(size != 1)]


def _sizes_at(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(shape[axis] for axis in axes)


@dataclass(frozen=True)
class Position:
    """``min(base + offset, bound)``, computed in integers or, if not ``is_exact``, partly in types
    that hold only small ones."""

    base: Node
    offset: int = 0
    bound: int | None = None
    is_exact: bool = True


def _index_position(node: Node) -> Position:
    """Position: a scalar as computed from another one by steps that are known."""
    position = Position(node)
    while (before := _step_before(position)) is not None:
        position = before
    return position


def _step_before(at: Position) -> Position | None:
    """The same position from the operand of its base."""
    node = at.base
    match node:
        case Reshape(x=x) if node.type.is_single:
            return replace(at, base=x)
        case Add(x=x, y=Constant() as y) | Add(x=Constant() as y, y=x) if _is_integer(y):
            return replace(at, base=x, offset=at.offset + int(y.value.item()))
        case Elementwise(args=(x,), expression=Expr(op=op, args=(Expr("arg"),))) if op in CASTS:
            kinds = (x.type.dtype, node.type.dtype)
            is_exact = at.is_exact and all(kind is DType.I64 for kind in kinds)
            return replace(at, base=x, is_exact=is_exact) if x.type.is_single else None
        case Elementwise(args=(x, Constant() as y)) | Elementwise(args=(Constant() as y, x)):
            return _before_function(at, node, x, y)
    return None


def _before_function(at: Position, node: Elementwise, x: Node, y: Constant) -> Position | None:
    """Before a sum with a constant, or a minimum that is the last step."""
    if not x.type.is_single or y.value.size != 1 or node.type.dtype is not DType.I64:
        return None
    value, (x_at, y_at) = int(y.value.item()), (node.args.index(x), node.args.index(y))
    match node.expression:
        case Expr("iadd", (Expr("arg"), Expr("arg"))):
            return replace(at, base=x, offset=at.offset + value)
        case Expr("isub", (Expr("arg", value=0), Expr("arg", value=1))) if x_at < y_at:
            return replace(at, base=x, offset=at.offset - value)
        case Expr("imin", (Expr("arg"), Expr("arg"))) if not at.offset and at.bound is None:
            return replace(at, base=x, bound=value)
    return None


def _is_integer(constant: Constant) -> bool:
    """Whether a Constant is one whole number that float32 holds."""
    value = constant.value
    return value.size == 1 and abs(value.item()) < LARGEST and float(value.item()).is_integer()


@dataclass(frozen=True)
class IndexSpan:
    """``length`` integers from ``start``; as many as ``range(start, end)`` has while all are below
    ``bound``."""

    start: Node
    length: int
    bound: int | None

    def indices(self, call: Call, bound: int) -> Elementwise:
        """The integers, or ``bound`` where the start is negative [length]."""
        start = Reshape(name=call.derive("start"), x=self.start, shape=(1,))
        steps = Constant(name=call.derive("steps"), value=np.arange(self.length))
        below = fn("lt", arg(0), lconst(0))
        value = fn("select", below, lconst(bound), fn("iadd", arg(0), arg(1)))
        return Elementwise(
            name=call.derive("span"),
            args=(start, steps),
            expression=value,
            out=ElementType(DType.I64),
        )


def _span_between(start: Node, end: Node, length: int | None = None) -> IndexSpan | None:
    """The span from a computed start to a computed end, if its length is known; ``length``: that of
    the axis that it is a part of."""
    kinds = {start.type.dtype, end.type.dtype}
    if kinds != {DType.I64} or not start.type.is_single or not end.type.is_single:
        return None
    first, last = _index_position(start), _index_position(end)
    count, bounds = last.offset - first.offset, [b for b in (length, last.bound) if b is not None]
    if first.base is not last.base or first.bound is not None or not 0 < count <= LONGEST:
        return None
    bound = min(bounds, default=None)
    is_exact = first.is_exact and last.is_exact
    if not is_exact and (bound is None or bound >= LARGEST):
        return None
    return IndexSpan(start, count, bound)


def _in_loop(call: Call, *positions: int) -> bool:
    """Whether operands are computed in a loop, from more than inputs that have programs for each of
    their values."""
    if not call.scope.loops or any(call.is_known(at) for at in positions):
        return False
    return not all(call.scope.is_decided(call.tensor(at)) for at in positions)


def slice_computed(call: Call) -> Node | None:
    """A Slice along one axis as a look-up; None if its length is not known."""
    if call.opset < 10 or not _in_loop(call, 1, 2):
        return None
    x = call.tensor(0)
    every = range(int(call.tensor(1).type.size))
    axes = normal(call.parameter("axes", 3) or every, x.type.rank)
    if len(axes) != 1 or not decide_equal(call.parameter("steps", 4) or (1,), (1,)):
        return None
    size = x.type.shape[axes[0]]
    if isinstance(size, Size):
        return None
    span = _span_between(call.tensor(1), call.tensor(2), size)
    if span is None or span.bound != size:
        return None
    return Gather(name=call.result, x=x, indices=span.indices(call, size), axis=axes[0])


@importer("Range")
def range_(call: Call) -> Array | Node:
    """A look-up where its start is computed, else a constant or a part of one."""
    return sequence(call) if (lookup := _range_computed(call)) is None else lookup


def _range_computed(call: Call) -> Node | None:
    """A Range of step 1 as a look-up; None if its length is not known."""
    if not _in_loop(call, 0, 1) or not call.is_known(2) or call.is_float(0):
        return None
    if decide(call.array(2, "delta").item() != 1):
        return None
    span = _span_between(call.tensor(0), call.tensor(1))
    if span is None or span.bound is None:
        return None
    numbers = Constant(name=call.derive("numbers"), value=np.arange(span.bound))
    indices = span.indices(call, span.bound)
    return Gather(name=call.result, x=numbers, indices=indices, axis=0)
