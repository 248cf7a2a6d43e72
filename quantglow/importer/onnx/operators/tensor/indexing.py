"""Importers of operators that read and write at indices computed at run time.

Everything becomes a Gather or Scatter of rows; which rows is int64 arithmetic in a ``Elementwise``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.tensor.ranges import counted_axes
from quantglow.importer.onnx.operators.tensor.shape import counting, normal
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Elementwise, Expand, Gather, Reshape, Slice, TopK, Transpose
from quantglow.ir.ops.binary import Where
from quantglow.ir.ops.expression import Expr, arg, const, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import MOST_INDEX, misplaced_index, out_of_range
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    Size,
    decide,
    decide_equal,
    fixed,
    has_free,
    prod,
    surely_equal,
)
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

INT64, BOOL = ElementType(DType.I64), ElementType(DType.BOOL)


def reshape(call: Call, x: Node, shape: Shape) -> Node:
    is_alike = decide_equal(x.type.shape, shape)
    return x if is_alike else Reshape(name=call.derive("as"), x=x, shape=shape)


def _move(call: Call, x: Node, perm: Sequence[int]) -> Node:
    if list(perm) == list(range(len(perm))):
        return x
    return Transpose(name=call.derive("moved"), x=x, perm=tuple(perm))


def iota(call: Call, shape: Sequence[Dim], axis: int) -> Node:
    """0, 1, … along one axis of ``len(shape)``; the others are 1."""
    sizes = tuple(d if i == axis else 1 for i, d in enumerate(shape))
    length = shape[axis]
    if isinstance(length, Size):
        numbers = counting(call.derive("numbers"), call.derive("count"), 0, length)
        return Reshape(name=call.derive("iota"), x=numbers, shape=sizes)
    value = np.arange(length, dtype=np.int64).reshape(fixed(sizes))
    return Constant(name=call.derive("iota"), value=value)


def row_major_strides(shape: Sequence[Dim]) -> list[Dim]:
    """Row-major, in elements."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _from_the_end(index: Expr, size: Dim) -> Expr:
    """Negative indices count from the end."""
    return fn("select", fn("lt", index, lconst(0)), fn("iadd", index, lconst(size)), index)


@dataclass(frozen=True)
class Bound:
    """The condition on an index counted from the begin: it is less than ``length``, or equal if
    ``closed``.  ``reported`` is what an error names."""

    index: Expr
    reported: Expr
    length: Dim
    closed: bool = False

    @staticmethod
    def of(index: Expr, length: Dim) -> Bound:
        """The bound of an index that may count from the end."""
        return Bound(_from_the_end(index, length), index, length)

    @property
    def holds(self) -> Expr:
        """Whether the index is in range."""
        below = fn("le" if self.closed else "lt", self.index, lconst(self.length))
        return fn("and", fn("ge", self.index, lconst(0)), below)

    @property
    def broken(self) -> Expr:
        """The position that stands for an index out of range."""
        most = fn("imin", self.reported, lconst(MOST_INDEX))
        return fn(
            "iadd", fn("imax", most, lconst(-MOST_INDEX)), lconst(misplaced_index(self.length))
        )


def positions(
    call: Call, tag: str, value: Expr, args: Sequence[Node], bounds: Sequence[Bound]
) -> Node:
    """``value``, or what stands for the first index that is out of range.

    In a branch that is not taken indices may be anything, so there position 0 stands for them.
    Raises ``ValueError`` for known indices that are out of range.
    """
    operands = list(args)
    matters = _branch_condition(call, operands)
    # Selects nest from the last bound to the first, so that the first broken one is outermost.
    for bound in reversed(bounds):
        broken = bound.broken if matters is None else fn("select", matters, bound.broken, lconst(0))
        value = fn("select", bound.holds, value, broken)
    node = integers(call, tag, value, operands)
    arrays = [value for value in map(constant_value, operands) if value is not None]
    if bounds and len(arrays) == len(operands) and not node.has_free_sizes:
        _check_positions(node, node.evaluate(*arrays))
    return node


def constant_value(node: Node) -> Array | None:
    """The elements of a Constant, also reshaped or cut; None for what is computed at run time, or
    of a free size."""
    if node.has_free_sizes:
        return None
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Reshape | Slice) and (value := constant_value(node.x)) is not None:
        return node.evaluate(value)
    return None


def _branch_condition(call: Call, args: list[Node]) -> Expr | None:
    """Whether the branches around a node are taken, by operands that are added; None outside."""
    all_hold: Expr | None = None
    for condition, is_then in call.scope.conditions:
        holds = arg(len(args))
        args.append(reshape(call, condition, (1,) * args[0].type.rank))
        holds = holds if is_then else fn("not", holds)
        all_hold = holds if all_hold is None else fn("and", all_hold, holds)
    return all_hold


def of_taken_branch(call: Call, indices: Node, length: Dim) -> Node:
    """Indices of a ``Gather``, which checks them itself, but not where a branch is not taken."""
    if not call.scope.conditions:
        return indices
    bound = Bound.of(fn("int64", arg(0)), length)
    return positions(call, "indices", bound.index, [indices], [bound])


def from_the_begin(call: Call, indices: Node, length: Dim) -> Node:
    """Indices of a ``Gather`` that count from the begin only: negative ones are out of range.

    Raises ``ValueError`` for known ones that are.
    """
    wide = fn("int64", arg(0))
    return positions(call, "indices", wide, [indices], [Bound(wide, wide, length)])


def _check_positions(node: Node, positions: Array) -> None:
    """Raise ``ValueError`` if one of them stands for an index that is out of range."""
    if positions.size and (most := int(positions.max())) >= int(misplaced_index(0)) - MOST_INDEX:
        error = out_of_range(node.name, most, most)
        raise ValueError(
            f"index {error.index} is out of range for an axis of length {error.length}"
        )


def check_known(call: Call, length: Dim) -> None:
    """Raise ``ValueError`` for known indices (operand 1) that are out of range for an axis."""
    if call.is_known(1):
        indices = call.array(1, "indices")
        values = indices.reshape(-1).tolist()
        is_plain = values and not has_free(indices)
        for index in (min(values), max(values)) if is_plain else values:
            if decide(index >= -length) and decide(index < length):
                continue
            raise ValueError(f"index {index} is out of range for an axis of length {length}")


def dot(terms: Sequence[tuple[Expr, Dim]]) -> Expr:
    """The sum of products with constants."""
    total: Expr = lconst(0)
    for index, stride in terms:
        product = index if decide(stride == 1) else fn("imul", index, lconst(stride))
        total = product if total == lconst(0) else fn("iadd", total, product)
    return total


def integers(call: Call, tag: str, value: Expr, args: Sequence[Node]) -> Node:
    """An int64 ``Elementwise`` that only this node needs."""
    return Elementwise(name=call.derive(tag), args=tuple(args), expression=value, out=INT64)


def _rows_at(call: Call, x: Node, rows: Node, width: Dim) -> Node:
    """Gather of rows of ``width`` elements of x, the result of the ONNX node."""
    table = reshape(call, x, (x.type.size // width, width))
    return Gather(name=call.result, x=table, indices=rows, axis=0)


def element_positions(
    call: Call, shape: Shape, indices: Node, axis: int, *, trusted: bool = False
) -> Node:
    """Positions in a flattened tensor of ``shape`` of the elements that ``indices`` choose along
    ``axis``.  ``trusted``: they are in range.  ``Unsupported``: along another axis there are more
    indices than elements, and those of the next row would be taken."""
    for other, (size, length) in enumerate(zip(indices.type.shape, shape, strict=True)):
        if other != axis and decide(size > length):
            raise Unsupported(f"it has {size} indices along axis {other} of {length} elements")
    strides = row_major_strides(shape)
    bound = Bound.of(fn("int64", arg(0)), shape[axis])
    terms, args = [(arg(0) if trusted else bound.index, strides[axis])], [indices]
    for other, size in enumerate(indices.type.shape):
        if other != axis and decide(size > 1):
            terms.append((arg(len(args)), strides[other]))
            args.append(iota(call, indices.type.shape, other))
    return positions(call, "positions", dot(terms), args, [] if trusted else [bound])


def _are_below(indices: Node, length: Dim) -> bool:
    """Whether indices are known to be in range: parts of a Constant."""
    if isinstance(indices, Reshape | Slice | Expand):
        return _are_below(indices.x, length)
    return isinstance(indices, Constant) and bool(
        indices.value.min(initial=0) >= 0 and decide(int(indices.value.max(initial=-1)) < length)
    )


@importer("GatherElements")
def gather_elements(call: Call) -> Node:
    x, indices = call.tensor(0), call.tensor(1)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    if isinstance(x, Expand) and x.x.type.is_single and _are_below(indices, x.type.shape[axis]):
        one = reshape(call, x.x, (1,) * indices.type.rank)
        return Expand(name=call.result, x=one, shape=indices.type.shape)
    gathered = _rows_at(call, x, element_positions(call, x.type.shape, indices, axis), 1)
    return reshape(call, gathered, indices.type.shape)


@importer("GatherND")
def gather_nd(call: Call) -> Node:
    """The last axis of the indices holds coordinates of the first axes of x, behind the batch."""
    x, indices = call.tensor(0), call.tensor(1)
    batch, depth = call.integer("batch_dims", 0), int(indices.type.shape[-1])
    sizes, inner = x.type.shape[: batch + depth], x.type.shape[batch + depth :]
    outer = indices.type.shape[:-1]
    if not decide_equal(outer[:batch], x.type.shape[:batch]):
        raise ValueError(f"indices {indices.type} are not of the batch of {x.type}")
    if not batch and (axes := counted_axes(indices, sizes)):
        return _spread(call, x, axes, (*outer, *inner))
    strides = row_major_strides(sizes)
    args = coordinates(call, indices)
    bounds = [Bound.of(fn("int64", arg(i)), sizes[batch + i]) for i in range(depth)]
    terms = [(bound.index, strides[batch + i]) for i, bound in enumerate(bounds)]
    for axis in range(batch):
        terms.append((arg(len(args)), strides[axis]))
        args.append(iota(call, args[0].type.shape, axis))
    rows = positions(call, "rows", dot(terms), args, bounds)
    gathered = _rows_at(call, x, rows, prod(inner))
    return reshape(call, gathered, (*outer, *inner))


def _spread(call: Call, x: Node, axes: Sequence[int], shape: Shape) -> Node:
    """x with its first axes at ``axes`` of a shape, and repeated along those between."""
    last = len(shape) - (x.type.rank - len(axes))
    x_axes = {*axes, *range(last, len(shape))}
    sizes = tuple(size if axis in x_axes else 1 for axis, size in enumerate(shape))
    wide = reshape(call, x, sizes)
    if surely_equal(sizes, shape):
        return wide
    return Expand(name=call.derive("wide"), x=wide, shape=shape)


def coordinates(call: Call, indices: Node) -> list[Node]:
    """The last axis taken apart."""
    *outer, depth = indices.type.shape
    columns = []
    for i in range(int(depth)):
        starts, ones = (*(0 for _ in outer), i), (1,) * (len(outer) + 1)
        part = Slice(
            name=call.derive("axis"), x=indices, starts=starts, sizes=(*outer, 1), steps=ones
        )
        columns.append(reshape(call, part, tuple(outer)))
    return columns


def _axis_last(rank: int, axis: int) -> list[int]:
    """The permutation that swaps an axis with the last one: its own inverse."""
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return perm


@importer("TopK")
def top_k(call: Call) -> list[Node]:
    """In order even where it need not be."""
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", -1),), x.type.rank)
    (k,) = (call.parameter("k", 1) or (0,)) if call.has(1) else (call.integer("k", 0),)
    k = int(k)
    if not k:
        raise Unsupported("k is 0, so its results have no elements")
    perm = _axis_last(x.type.rank, axis)
    rows = _move(call, x, perm)
    largest = bool(call.integer("largest", 1))
    values = call.result
    chosen = TopK(name=call.result_name(1), x=rows, k=k, largest=largest)
    places = element_positions(call, rows.type.shape, chosen, x.type.rank - 1, trusted=True)
    flat = reshape(call, rows, (rows.type.size,))
    best = Gather(name=values, x=flat, indices=places, axis=0)
    return [_move(call, best, perm), _move(call, chosen, perm)]


@importer("ArgMax", "ArgMin")
def arg_extreme(call: Call) -> Node:
    """The first of equal elements; with ``select_last_index`` the last."""
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    perm = _axis_last(x.type.rank, axis)
    rows = _move(call, x, perm)
    length = rows.type.shape[-1]
    last = bool(call.integer("select_last_index", 0))
    if last:
        rows = _reverse_rows(call, rows)
    largest = call.proto.op_type == "ArgMax"
    name = call.derive("mirrored") if last else call.result
    best: Node = TopK(name=name, x=rows, k=1, largest=largest)
    if last:
        mirrored = fn("isub", lconst(length - 1), arg(0))
        best = Elementwise(name=call.result, args=(best,), expression=mirrored, out=INT64)
    best = _move(call, best, perm)
    if call.integer("keepdims", 1):
        return best
    return reshape(call, best, tuple(d for i, d in enumerate(best.type.shape) if i != axis))


def _reverse_rows(call: Call, x: Node) -> Node:
    """x backwards along its last axis."""
    *outer, length = x.type.shape
    starts, steps = (*(0 for _ in outer), length - 1), (*(1 for _ in outer), -1)
    name = call.derive("reversed")
    return Slice(name=name, x=x, starts=starts, sizes=x.type.shape, steps=steps)


@importer("OneHot")
def one_hot(call: Call) -> Node:
    """``on`` where the index, counted from the end if negative, is that of the new axis."""
    indices, values = call.tensor(0), call.tensor(2)
    (depth,) = (int(d) for d in call.array(1, "depth").reshape(-1))
    rank = indices.type.rank + 1
    (axis,) = normal((call.integer("axis", -1),), rank)
    shape = list(indices.type.shape)
    shape.insert(axis, 1)
    index = _from_the_end(fn("int64", arg(0)), depth)
    classes = iota(call, [depth if i == axis else 1 for i in range(rank)], axis)
    args = (reshape(call, indices, tuple(shape)), classes)
    equal = fn("eq", index, arg(1))
    hot = Elementwise(name=call.derive("hot"), args=args, expression=equal, out=BOOL)
    off, on = (element(call, values, i) for i in range(2))
    return Where(name=call.result, condition=hot, x=on, y=off)


def element(call: Call, x: Node, index: int) -> Node:
    """One element of a vector, without axes."""
    part = Slice(name=call.derive("element"), x=x, starts=(index,), sizes=(1,), steps=(1,))
    return reshape(call, part, ())


@importer("Hardmax")
def hardmax(call: Call) -> Node:
    """1 at the first largest element, else 0; before opset 13 of rows of all axes from ``axis``."""
    x, rank = call.node(0), len(call.shape(0))
    (axis,) = normal((call.integer("axis", -1 if call.opset >= 13 else 1),), rank)
    perm = _axis_last(rank, axis) if call.opset >= 13 else list(range(rank))
    rows = _move(call, x, perm)
    shape = rows.type.shape
    if call.opset < 13:
        rows = reshape(call, x, (prod(shape[:axis]), prod(shape[axis:])))
    best = TopK(name=call.derive("best"), x=rows, k=1)
    places = iota(call, rows.type.shape, rows.type.rank - 1)
    one = fn("select", fn("eq", arg(0), arg(1)), *(const(v) for v in (1, 0)))
    hot = Elementwise(
        name=call.result, args=(best, places), expression=one, out=ElementType(DType.F32)
    )
    return _move(call, reshape(call, hot, shape), perm)


@importer("ReverseSequence")
def reverse_sequence(call: Call) -> Node:
    """The first ``lengths[b]`` steps of each batch backwards, by a Gather of rows."""
    x, lengths = call.tensor(0), call.tensor(1)
    (time, batch) = normal(
        (call.integer("time_axis", 0), call.integer("batch_axis", 1)), x.type.rank
    )
    perm = [batch, time, *(i for i in range(x.type.rank) if i not in (batch, time))]
    rows = _move(call, x, perm)
    count, steps = rows.type.shape[:2]
    place, length = arg(1), arg(0)
    bound = Bound(fn("int64", length), fn("int64", length), steps, closed=True)
    mirrored = fn("isub", fn("isub", length, lconst(1)), place)
    index = fn("select", fn("lt", place, length), mirrored, place)
    args = [
        reshape(call, lengths, (count, 1)),
        iota(call, (count, steps), 1),
        iota(call, (count, steps), 0),
    ]
    value = dot([(index, 1), (arg(2), steps)])
    places = positions(call, "rows", value, args, [bound])
    chosen = _rows_at(call, rows, places, rows.type.size // count // steps)
    back = [perm.index(i) for i in range(x.type.rank)]
    return _move(call, reshape(call, chosen, rows.type.shape), back)


@importer("Trilu")
def trilu(call: Call) -> Node:
    """The part on and above (or below) the k-th diagonal; zero elsewhere."""
    x = call.tensor(0)
    rows, columns = x.type.shape[-2:]
    k = int(call.array(1, "k").reshape(())) if call.has(1) else 0
    name, is_upper = call.derive("kept"), bool(call.integer("upper", 1))
    if isinstance(rows, Size) or isinstance(columns, Size):
        numbers = [iota(call, (rows, columns), axis) for axis in (1, 0)]
        diagonal = fn("ge" if is_upper else "le", fn("isub", arg(0), arg(1)), lconst(k))
        boolean = ElementType(DType.BOOL)
        condition: Node = Elementwise(
            name=name, args=tuple(numbers), expression=diagonal, out=boolean
        )
    else:
        call.reserve((rows, columns), 9)
        distance = np.arange(columns) - np.arange(rows)[:, None]
        mask = distance >= k if is_upper else distance <= k
        condition = Constant(name=name, value=mask)
    zero = Constant(name=call.derive("zero"), value=np.zeros((), x.type.dtype.numpy))
    return Where(name=call.result, condition=condition, x=x, y=zero)


@importer("Compress")
def compress(call: Call) -> Node:
    """The slices whose condition, which must be known, is true."""
    x, chosen = call.tensor(0), call.array(1, "condition")
    if "axis" in call.attributes:
        (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    else:
        x, axis = reshape(call, x, (x.type.size,)), 0
    indices = Constant(name=call.derive("kept"), value=np.flatnonzero(chosen).astype(np.int64))
    if not indices.value.size:
        raise Unsupported("nothing is left")
    return Gather(name=call.result, x=x, indices=indices, axis=axis)
