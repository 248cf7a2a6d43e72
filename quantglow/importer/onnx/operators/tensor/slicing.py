"""Importers of Slice, Split, Pad, and of operators that write at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Result, Unsupported, importer
from quantglow.importer.onnx.operators.groupwise import looked_up_rows, packed_table
from quantglow.importer.onnx.operators.tensor.indexing import (
    Bound,
    check_known,
    coordinates,
    dot,
    element_positions,
    iota,
    of_taken_branch,
    positions,
    reshape,
    row_major_strides,
)
from quantglow.importer.onnx.operators.tensor.ranges import slice_computed
from quantglow.importer.onnx.operators.tensor.shape import normal
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Scatter
from quantglow.ir.ops.expression import Expr, arg, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.shape import Concat, Expand, Pad, Reshape, Slice
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    Size,
    decide,
    decide_equal,
    decide_max,
    decide_min,
    fixed,
    prod,
)

MOST_SLICES = 16
"""Parts of a Gather: more of them are a look-up table, which slices are not made for."""


@importer("Slice")
def slice_(call: Call) -> Node:
    """Starts and ends are attributes before opset 10, operands after; both clamp to the axis."""
    if (lookup := slice_computed(call)) is not None:
        return lookup
    x = call.tensor(0)
    starts, ends = call.parameter("starts", 1) or (), call.parameter("ends", 2) or ()
    axes = normal(call.parameter("axes", 3) or tuple(range(len(starts))), x.type.rank)
    _check_different(axes)
    steps = call.parameter("steps", 4) or (1,) * len(starts)
    spans = [SliceRange(0, d) for d in x.type.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        spans[axis] = _clamp(start, end, int(step), x.type.shape[axis])
    return _slice_axes(call.result, x, spans)


def _check_different(axes: Sequence[int]) -> None:
    """Raise ``ValueError`` for an axis that is named twice."""
    if len(set(axes)) < len(axes):
        raise ValueError(f"axes {list(axes)} name an axis twice")


class SliceRange(NamedTuple):
    """``size`` indices from ``start``, every ``step``-th: a range, whose ends may be free."""

    start: Dim
    size: Dim
    step: int = 1

    @staticmethod
    def of(indices: range) -> SliceRange:
        """The span of a range."""
        return SliceRange(indices.start if indices else 0, len(indices), indices.step)


def _clamp(start: Dim, end: Dim, step: int, size: Dim) -> SliceRange:
    """``range(size)[start:end:step]``"""
    if not step:
        raise ValueError("slice step cannot be zero")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (_within(at + size if decide(at < 0) else at, low, high) for at in (start, end))
    count = (end - start + step - 1) // step if step > 0 else (start - end - step - 1) // -step
    return SliceRange(start, count, step) if decide(count > 0) else SliceRange(0, 0, step)


def _within(at: Dim, low: int, high: Dim) -> Dim:
    return low if decide(at < low) else high if decide(at > high) else at


def _slice_axes(name: str, x: Node, spans: Sequence[SliceRange]) -> Node:
    """The elements of x at the indices of one span for each axis."""
    starts, sizes, steps = zip(*spans, strict=True) if spans else ((), (), ())
    return Slice(name=name, x=x, starts=starts, sizes=sizes, steps=steps)


def along(name: str, x: Node, axis: int, indices: range) -> Node:
    """``_slice_axes`` on one axis."""
    return along_span(name, x, axis, SliceRange.of(indices))


def along_span(name: str, x: Node, axis: int, span: SliceRange) -> Node:
    """``_slice_axes`` on one axis."""
    spans = [span if i == axis else SliceRange(0, d) for i, d in enumerate(x.type.shape)]
    return _slice_axes(name, x, spans)


@importer("Gather")
def gather(call: Call) -> Result:
    """A few known indices are slices, any others a look-up."""
    if (blocks := packed_table(call)) is not None:
        rows = len(blocks.codes)
        return looked_up_rows(call, blocks, of_taken_branch(call, call.tensor(1), rows))
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    length = x.type.shape[axis]
    check_known(call, length)
    if call.is_known(1):
        slices = _gather_slices(call, x, axis)
        if slices is not None:
            return slices
    indices = of_taken_branch(call, call.tensor(1), length)
    return Gather(name=call.result, x=x, indices=indices, axis=axis)


def _gather_slices(call: Call, x: Node, axis: int) -> Result | None:
    """Gather of known indices as slices of x, or nothing where there are none; None if they are
    many."""
    indices = call.array(1, "indices")
    shape = (*x.type.shape[:axis], *indices.shape, *x.type.shape[axis + 1 :])
    if not indices.size:
        return np.zeros(fixed(shape), x.type.dtype.numpy)
    length = x.type.shape[axis]
    chosen = [_from_the_front(int(index), length) for index in indices.reshape(-1).tolist()]
    if len(indices.shape) == 1:
        return few_slices(call, call.result, x, axis, chosen)
    rows = few_slices(call, call.derive("rows"), x, axis, chosen)
    return rows and Reshape(name=call.result, x=rows, shape=shape)


def _from_the_front(index: int, length: Dim) -> Dim:
    """An index counted from the front.  Raises ``ValueError`` outside of the axis."""
    if decide(index < -length) or decide(index >= length):
        raise ValueError(f"index {index} is outside of an axis of {length}")
    return index + length if index < 0 else index


def few_slices(call: Call, name: str, x: Node, axis: int, chosen: Sequence[Dim]) -> Node | None:
    """The elements of x at these indices of an axis as slices of x, one where they are evenly
    spaced; None if many.
    """
    spans = _evenly_spaced(chosen)
    if len(spans) > MOST_SLICES:
        return None
    if len(spans) == 1:
        return along_span(name, x, axis, spans[0])
    parts = tuple(along_span(call.derive("part"), x, axis, span) for span in spans)
    return Concat(name=name, parts=parts, axis=axis)


def _evenly_spaced(indices: Sequence[Dim]) -> list[SliceRange]:
    """The indices as few ranges, taken from the front.  Distances that depend on a free size end a
    range: a guard on them would hold for one size."""
    spans: list[SliceRange] = []
    start = 0
    while start < len(indices):
        end = start + 1
        step = _fixed_distance(indices, end)
        while step and _fixed_distance(indices, end) == step:
            end += 1
        spans.append(SliceRange(indices[start], end - start, step or 1))
        start = end
    return spans


def _fixed_distance(indices: Sequence[Dim], at: int) -> int:
    """The distance of an index from the one before; 0 if it is free, or there is no such index."""
    distance = indices[at] - indices[at - 1] if at < len(indices) else 0
    return 0 if isinstance(distance, Size) else distance


@importer("Split")
def split(call: Call) -> list[Result]:
    x = call.tensor(0)
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    results: list[Result] = []
    start: Dim = 0
    for i, size in enumerate(_split_sizes(call, x.type.shape[axis])):
        if decide(size != 0):
            results.append(along_span(call.result_name(i), x, axis, SliceRange(start, size)))
        else:
            shape = tuple(0 if a == axis else d for a, d in enumerate(x.type.shape))
            results.append(np.zeros(fixed(shape), x.type.dtype.numpy))
        start += size
    return results


def _split_sizes(call: Call, length: Dim) -> Shape:
    """Sizes as attribute, as operand, or equal; the last part may be smaller."""
    parts = call.parameter("split", 1)
    count = len(call.proto.output)
    if parts:
        fits = len(parts) == count and decide(sum(parts) == length)
        if not fits or any(decide(part < 0) for part in parts):
            raise ValueError(f"parts of {parts} do not make {count} outputs of {length}")
        return parts
    size = -(-length // count)
    sizes = (*(size,) * (count - 1), length - size * (count - 1))
    if decide(sizes[-1] < 1) or (call.opset < 18 and decide(sizes[-1] != size)):
        raise ValueError(f"{length} elements do not split into {count} parts")
    return sizes


@importer("Pad")
def pad(call: Call) -> Node:
    """Negative pads cut first; then the mode fills."""
    x = call.tensor(0)
    before, after = _pad_widths(call, x.type.rank)
    spans = [
        SliceRange(decide_max(-b, 0), decide_max(d + decide_min(a, 0) - decide_max(-b, 0), 0))
        for b, a, d in zip(before, after, x.type.shape, strict=True)
    ]
    if not all(decide(span.size != 0) for span in spans):
        raise Unsupported("its negative pads leave no elements of an axis")
    before, after = [decide_max(b, 0) for b in before], [decide_max(a, 0) for a in after]
    widened = any(decide(width != 0) for width in (*before, *after))
    if not decide_equal([span.size for span in spans], x.type.shape):
        x = _slice_axes(call.derive("cut") if widened else call.result, x, spans)
    mode = call.text("mode", "constant")
    if mode != "constant":
        return _mirror(call, x, mode, before, after)
    if not widened:
        return x
    return Pad(
        name=call.result, x=x, before=tuple(before), after=tuple(after), value=_pad_value(call)
    )


def _pad_value(call: Call) -> float:
    """The constant that fills.  Raises ``Unsupported`` for an integer that no float64 is."""
    if call.has(2):
        exact = call.array(2, "constant_value").reshape(()).item()
        if float(exact) != exact and exact == exact:
            raise Unsupported(f"pads of {exact}, which float64 cannot hold")
        return float(exact)
    return call.number("value", 0.0)


def _pad_widths(call: Call, rank: int) -> tuple[list[Dim], list[Dim]]:
    """Widths before and after every axis; ``axes`` may choose some."""
    widths = call.parameter("pads", 1) or ()
    axes = normal(call.parameter("axes", 3) or tuple(range(rank)), rank)
    _check_different(axes)
    if len(widths) != 2 * len(axes):
        raise ValueError(f"pads {widths} do not fit {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = widths[i], widths[i + len(axes)]
    return before, after


def _mirror(call: Call, x: Node, mode: str, before: list[Dim], after: list[Dim]) -> Node:
    """Pads made of slices of x itself, one axis after the other."""
    if mode not in _BORDERS:
        raise Unsupported(f"pad mode {mode!r}")
    padded = [i for i in range(x.type.rank) if decide(before[i] != 0) or decide(after[i] != 0)]
    for axis in padded:
        size = x.type.shape[axis]
        widest = decide_max(before[axis], after[axis])
        if decide(widest > size - (mode == "reflect")) and mode != "edge":
            raise Unsupported(f"{mode} pads wider than axis {axis} of {size}")
        left, right = _BORDERS[mode](size, before[axis], after[axis])
        parts = [border(call, x, axis, left, before[axis]), x]
        parts.append(border(call, x, axis, right, after[axis]))
        name = call.result if axis == padded[-1] else call.derive("part")
        x = Concat(name=name, parts=tuple(p for p in parts if p is not None), axis=axis)
    return x


def border(call: Call, x: Node, axis: int, span: SliceRange, width: Dim) -> Node | None:
    """``width`` rows of x at ``span``; a single row is repeated."""
    if not decide(width != 0):
        return None
    part = along_span(call.derive("border"), x, axis, span)
    if decide(span.size == width):
        return part
    shape = tuple(width if i == axis else d for i, d in enumerate(part.type.shape))
    return Expand(name=call.derive("border"), x=part, shape=shape)


_BORDERS = {
    "reflect": lambda d, b, a: (SliceRange(b, b, -1), SliceRange(d - 2, a, -1)),
    "edge": lambda d, b, a: (SliceRange(0, 1), SliceRange(d - 1, 1)),
    "wrap": lambda d, b, a: (SliceRange(d - b, b), SliceRange(0, a)),
}
"""(size, before, after) -> the indices in front of and behind an axis."""


@importer("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    if not decide_equal(updates.type.shape, indices.type.shape):
        raise ValueError(f"updates are {updates.type}, indices {indices.type}, of other shape")
    rows = element_positions(call, x.type.shape, indices, axis)
    return _scatter(call, x, rows, updates, 1)


@importer("ScatterND")
def scatter_nd(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    depth = int(indices.type.shape[-1])
    sizes = x.type.shape[:depth]
    expected = (*indices.type.shape[:-1], *x.type.shape[depth:])
    if not decide_equal(updates.type.shape, expected):
        raise ValueError(f"updates are {updates.type}, which indices {indices.type} do not fit")
    bounds = [Bound.of(fn("int64", arg(i)), size) for i, size in enumerate(sizes)]
    terms = [(bound.index, s) for bound, s in zip(bounds, row_major_strides(sizes), strict=True)]
    rows = positions(call, "rows", dot(terms), coordinates(call, indices), bounds)
    return _scatter(call, x, rows, updates, prod(x.type.shape[depth:]))


@importer("TensorScatter")
def tensor_scatter(call: Call) -> Node:
    """A cache with ``updates`` written along ``axis``, from ``write_indices`` of each sample on;
    ``circular``: what goes over the end goes on at the begin, as often as it has to.
    """
    x, updates = call.tensor(0), call.tensor(1)
    (axis,) = normal((call.integer("axis", -2),), x.type.rank)
    circular = call.text("mode", "linear") == "circular"
    start = call.tensor(2) if call.has(2) else None
    return write(call, x, updates, axis, start, circular, call.result)


def write(
    call: Call,
    x: Node,
    updates: Node,
    axis: int,
    start: Node | None,
    circular: bool = False,
    name: str | None = None,
) -> Node:
    """x with ``updates`` along ``axis``, from ``start`` of each sample on."""
    # Elements that share their place up to the axis are one row; one index for each:
    # (sample, ..., step).
    sizes, places = x.type.shape[: axis + 1], updates.type.shape[: axis + 1]
    step, args = arg(0), list[Node]([iota(call, places, axis)])
    if start is not None:
        first = reshape(call, start, (places[0], *(1 for _ in places[1:])))
        step, args = fn("iadd", step, fn("int64", arg(1))), [*args, first]
    index = step
    if circular:
        step = index = fn("imod", step, lconst(sizes[axis]))
        if start is not None:
            start_index = fn("int64", arg(1))
            index = fn("select", fn("ge", start_index, lconst(0)), step, start_index)
    terms: list[tuple[Expr, Dim]] = [(step, 1)]
    for other, stride in enumerate(row_major_strides(sizes)[:-1]):
        terms.append((arg(len(args)), stride))
        args.append(iota(call, places, other))
    rows = positions(call, "rows", dot(terms), args, [Bound(index, index, sizes[axis])])
    width = prod(x.type.shape[axis + 1 :])
    return _scatter(call, x, rows, updates, width, name or call.derive("written"))


def _scatter(
    call: Call, x: Node, rows: Node, updates: Node, width: Dim, name: str | None = None
) -> Node:
    """x with rows of ``width`` elements updated, by default the result of the ONNX node."""
    updated = Scatter(
        name=name or call.result,
        x=reshape(call, x, (x.type.size // width, width)),
        indices=reshape(call, rows, (rows.type.size,)),
        updates=reshape(call, updates, (rows.type.size, width)),
        reduction=call.text("reduction", "none"),
    )
    return reshape(call, updated, x.type.shape)
