"""Importers of operators that read and write at indices computed at run time.

Everything becomes a Gather or Scatter of rows; which rows is int64 arithmetic in a ``Map``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from quantglow.frontend.context import Call, Unsupported, importer
from quantglow.frontend.operators.integers import constant_like
from quantglow.frontend.operators.shape import normal
from quantglow.graph.node import Constant, Node
from quantglow.ops import Gather, Map, Reshape, Scatter, Slice, TopK, Transpose
from quantglow.ops.expression import Expr, arg, lconst
from quantglow.ops.expression import call as fn
from quantglow.ops.selection import Where
from quantglow.types import DType, ElementType

INT64, BOOL = ElementType(DType.I64), ElementType(DType.BOOL)


def reshaped(call: Call, x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.type.shape == shape else Reshape(name=call.derived("as"), x=x, shape=shape)


def moved(call: Call, x: Node, perm: Sequence[int]) -> Node:
    if list(perm) == list(range(len(perm))):
        return x
    return Transpose(name=call.derived("moved"), x=x, perm=tuple(perm))


def iota(call: Call, shape: Sequence[int], axis: int) -> Constant:
    """0, 1, … along one axis of ``len(shape)``; the others are 1."""
    sizes = tuple(d if i == axis else 1 for i, d in enumerate(shape))
    value = np.arange(shape[axis], dtype=np.int64).reshape(sizes)
    return Constant(name=call.derived("iota"), value=value)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Row-major, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def from_the_end(index: Expr, size: int) -> Expr:
    """Negative indices count from the end."""
    return fn("select", fn("lt", index, lconst(0)), fn("iadd", index, lconst(size)), index)


def nearest(index: Expr, size: int) -> Expr:
    """The index that ``Gather`` takes: within 0 and ``size`` - 1."""
    return fn("imin", fn("imax", from_the_end(index, size), lconst(0)), lconst(size - 1))


def dotted(terms: Sequence[tuple[Expr, int]]) -> Expr:
    """The sum of products with constants."""
    total: Expr = lconst(0)
    for index, stride in terms:
        product = index if stride == 1 else fn("imul", index, lconst(stride))
        total = product if total == lconst(0) else fn("iadd", total, product)
    return total


def integers(call: Call, tag: str, value: Expr, args: Sequence[Node]) -> Node:
    """An int64 ``Map`` that only this node needs."""
    return Map(name=call.derived(tag), args=tuple(args), expression=value, out=INT64)


def rows_at(call: Call, x: Node, rows: Node, width: int) -> Node:
    """Gather of rows of ``width`` elements of x, the result of the ONNX node."""
    table = reshaped(call, x, (x.type.size // width, width))
    return Gather(name=call.result, x=table, indices=rows, axis=0)


def element_positions(call: Call, shape: tuple[int, ...], indices: Node, axis: int) -> Node:
    """Where in a tensor of ``shape``, flattened, the elements lie that ``indices`` choose along
    ``axis``; beyond its end for indices out of range."""
    strides = strides_of(shape)
    index = from_the_end(fn("int64", arg(0)), shape[axis])
    terms, args = [(index, strides[axis])], [indices]
    for other, size in enumerate(indices.type.shape):
        if other != axis and size > 1:
            terms.append((arg(len(args)), strides[other]))
            args.append(iota(call, indices.type.shape, other))
    inside = fn("and", fn("ge", index, lconst(0)), fn("lt", index, lconst(shape[axis])))
    value = fn("select", inside, dotted(terms), lconst(math.prod(shape)))
    return integers(call, "positions", value, args)


@importer("GatherElements")
def gather_elements(call: Call) -> Node:
    x, indices = call.tensor(0), call.tensor(1)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    positions = element_positions(call, x.type.shape, indices, axis)
    made = rows_at(call, x, positions, 1)
    return reshaped(call, made, indices.type.shape)


@importer("GatherND")
def gather_nd(call: Call) -> Node:
    """The last axis of the indices holds coordinates of the first axes of x, behind the batch."""
    x, indices = call.tensor(0), call.tensor(1)
    batch, depth = call.integer("batch_dims", 0), indices.type.shape[-1]
    sizes = x.type.shape[: batch + depth]
    strides = strides_of(sizes)
    args = coordinates(call, indices)
    terms = [
        (nearest(fn("int64", arg(i)), sizes[batch + i]), strides[batch + i]) for i in range(depth)
    ]
    for axis in range(batch):
        terms.append((arg(len(args)), strides[axis]))
        args.append(iota(call, args[0].type.shape, axis))
    rows = integers(call, "rows", dotted(terms), args)
    inner = x.type.shape[batch + depth :]
    made = rows_at(call, x, rows, math.prod(inner))
    return reshaped(call, made, (*indices.type.shape[:-1], *inner))


def coordinates(call: Call, indices: Node) -> list[Node]:
    """The last axis taken apart."""
    *outer, depth = indices.type.shape
    found = []
    for i in range(depth):
        starts, ones = (*(0 for _ in outer), i), (1,) * (len(outer) + 1)
        part = Slice(
            name=call.derived("axis"), x=indices, starts=starts, sizes=(*outer, 1), steps=ones
        )
        found.append(reshaped(call, part, tuple(outer)))
    return found


@importer("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    positions = element_positions(call, x.type.shape, indices, axis)
    return scattered(call, x, positions, updates, 1)


@importer("ScatterND")
def scatter_nd(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    depth = indices.type.shape[-1]
    sizes = x.type.shape[:depth]
    terms: list[tuple[Expr, int]] = []
    inside = fn("eq", lconst(0), lconst(0))
    for i, (size, stride) in enumerate(zip(sizes, strides_of(sizes), strict=True)):
        index = from_the_end(fn("int64", arg(i)), size)
        terms.append((index, stride))
        within = fn("and", fn("ge", index, lconst(0)), fn("lt", index, lconst(size)))
        inside = fn("and", inside, within) if i else within
    value = fn("select", inside, dotted(terms), lconst(math.prod(sizes)))
    rows = integers(call, "rows", value, coordinates(call, indices))
    return scattered(call, x, rows, updates, math.prod(x.type.shape[depth:]))


@importer("TensorScatter")
def tensor_scatter(call: Call) -> Node:
    """A cache with ``updates`` written along ``axis``, from ``write_indices`` of each sample on;
    ``circular``: what goes over the end goes on at the begin.
    """
    x, updates = call.tensor(0), call.tensor(1)
    (axis,) = normal((call.integer("axis", -2),), x.type.rank)
    circular = call.text("mode", "linear") == "circular"
    # What shares its place up to the axis is one row; one index for each: (sample, ..., step).
    sizes, places = x.type.shape[: axis + 1], updates.type.shape[: axis + 1]
    step, args = arg(0), list[Node]([iota(call, places, axis)])
    if call.has(2):
        start = reshaped(call, call.tensor(2), (places[0], *(1 for _ in places[1:])))
        step, args = fn("iadd", step, fn("int64", arg(1))), [*args, start]
    if circular:
        over = fn("ge", step, lconst(sizes[axis]))
        step = fn("select", over, fn("isub", step, lconst(sizes[axis])), step)
    inside = fn("and", fn("ge", step, lconst(0)), fn("lt", step, lconst(sizes[axis])))
    terms = [(step, 1)]
    for other, stride in enumerate(strides_of(sizes)[:-1]):
        terms.append((arg(len(args)), stride))
        args.append(iota(call, places, other))
    value = fn("select", inside, dotted(terms), lconst(math.prod(sizes)))
    rows = integers(call, "rows", value, args)
    return scattered(call, x, rows, updates, math.prod(x.type.shape[axis + 1 :]))


def scattered(call: Call, x: Node, rows: Node, updates: Node, width: int) -> Node:
    """x with rows of ``width`` elements updated, the result of the ONNX node."""
    made = Scatter(
        name=call.result,
        x=reshaped(call, x, (x.type.size // width, width)),
        indices=reshaped(call, rows, (rows.type.size,)),
        updates=reshaped(call, updates, (rows.type.size, width)),
        reduction=call.text("reduction", "none"),
    )
    return reshaped(call, made, x.type.shape)


def axis_last(rank: int, axis: int) -> list[int]:
    """The permutation that swaps an axis with the last one: its own inverse."""
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return perm


@importer("TopK")
def top_k(call: Call) -> list[Node]:
    """In order even where it need not be."""
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", -1),), x.type.rank)
    (k,) = call.parameter("k", 1) or (0,)
    perm = axis_last(x.type.rank, axis)
    rows = moved(call, x, perm)
    largest = bool(call.integer("largest", 1))
    values = call.result
    chosen = TopK(name=call.result_name(1), x=rows, k=k, largest=largest)
    positions = element_positions(call, rows.type.shape, chosen, x.type.rank - 1)
    flat = reshaped(call, rows, (rows.type.size,))
    best = Gather(name=values, x=flat, indices=positions, axis=0)
    return [moved(call, best, perm), moved(call, chosen, perm)]


@importer("ArgMax", "ArgMin")
def arg_extreme(call: Call) -> Node:
    """The first of equal elements; with ``select_last_index`` the last."""
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    perm = axis_last(x.type.rank, axis)
    rows = moved(call, x, perm)
    length = rows.type.shape[-1]
    last = bool(call.integer("select_last_index", 0))
    if last:
        rows = reversed_rows(call, rows)
    largest = call.proto.op_type == "ArgMax"
    name = call.derived("mirrored") if last else call.result
    found: Node = TopK(name=name, x=rows, k=1, largest=largest)
    if last:
        mirrored = fn("isub", lconst(length - 1), arg(0))
        found = Map(name=call.result, args=(found,), expression=mirrored, out=INT64)
    found = moved(call, found, perm)
    if call.integer("keepdims", 1):
        return found
    return reshaped(call, found, tuple(d for i, d in enumerate(found.type.shape) if i != axis))


def reversed_rows(call: Call, x: Node) -> Node:
    """x backwards along its last axis."""
    *outer, length = x.type.shape
    starts, steps = (*(0 for _ in outer), length - 1), (*(1 for _ in outer), -1)
    name = call.derived("reversed")
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
    index = from_the_end(fn("int64", arg(0)), depth)
    classes = iota(call, [depth if i == axis else 1 for i in range(rank)], axis)
    args = (reshaped(call, indices, tuple(shape)), classes)
    equal = fn("eq", index, arg(1))
    hot = Map(name=call.derived("hot"), args=args, expression=equal, out=BOOL)
    off, on = (element(call, values, i) for i in range(2))
    return Where(name=call.result, condition=hot, x=on, y=off)


def element(call: Call, x: Node, index: int) -> Node:
    """One element of a vector, without axes."""
    part = Slice(name=call.derived("element"), x=x, starts=(index,), sizes=(1,), steps=(1,))
    return reshaped(call, part, ())


@importer("Hardmax")
def hardmax(call: Call) -> Node:
    """1 at the first largest element, else 0; before opset 13 of rows of all axes from ``axis``."""
    x, rank = call.node(0), len(call.shape(0))
    (axis,) = normal((call.integer("axis", -1 if call.opset >= 13 else 1),), rank)
    perm = axis_last(rank, axis) if call.opset >= 13 else list(range(rank))
    rows = moved(call, x, perm)
    shape = rows.type.shape
    if call.opset < 13:
        rows = reshaped(call, x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    best = TopK(name=call.derived("best"), x=rows, k=1)
    places = iota(call, rows.type.shape, rows.type.rank - 1)
    one = fn("select", fn("eq", arg(0), arg(1)), *(constant_like(DType.F32, v) for v in (1, 0)))
    hot = Map(name=call.result, args=(best, places), expression=one, out=ElementType(DType.F32))
    return moved(call, reshaped(call, hot, shape), perm)


@importer("ReverseSequence")
def reverse_sequence(call: Call) -> Node:
    """The first ``lengths[b]`` steps of each batch backwards, by a Gather of rows."""
    x, lengths = call.tensor(0), call.tensor(1)
    (time, batch) = normal(
        (call.integer("time_axis", 0), call.integer("batch_axis", 1)), x.type.rank
    )
    perm = [batch, time, *(i for i in range(x.type.rank) if i not in (batch, time))]
    rows = moved(call, x, perm)
    count, steps = rows.type.shape[:2]
    place, length = arg(1), arg(0)
    mirrored = fn("isub", fn("isub", length, lconst(1)), place)
    index = fn("select", fn("lt", place, length), mirrored, place)
    args = [
        reshaped(call, lengths, (count, 1)),
        iota(call, (count, steps), 1),
        iota(call, (count, steps), 0),
    ]
    value = dotted([(nearest(index, steps), 1), (arg(2), steps)])
    chosen = rows_at(
        call, rows, integers(call, "rows", value, args), rows.type.size // count // steps
    )
    back = [perm.index(i) for i in range(x.type.rank)]
    return moved(call, reshaped(call, chosen, rows.type.shape), back)


@importer("Trilu")
def trilu(call: Call) -> Node:
    """The part on and above (or below) the k-th diagonal; zero elsewhere."""
    x = call.tensor(0)
    rows, columns = x.type.shape[-2:]
    k = int(call.array(1, "k").reshape(())) if call.has(1) else 0
    diagonal = np.arange(columns) - np.arange(rows)[:, None]
    kept = diagonal >= k if call.integer("upper", 1) else diagonal <= k
    condition = Constant(name=call.derived("kept"), value=kept)
    zero = Constant(name=call.derived("zero"), value=np.zeros((), x.type.dtype.numpy))
    return Where(name=call.result, condition=condition, x=x, y=zero)


@importer("Compress")
def compress(call: Call) -> Node:
    """The slices whose condition, which must be known, is true."""
    x, kept = call.tensor(0), call.array(1, "condition")
    if "axis" in call.attributes:
        (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    else:
        x, axis = reshaped(call, x, (x.type.size,)), 0
    indices = Constant(name=call.derived("kept"), value=np.flatnonzero(kept).astype(np.int64))
    if not indices.value.size:
        raise Unsupported("nothing is left")
    return Gather(name=call.result, x=x, indices=indices, axis=axis)
