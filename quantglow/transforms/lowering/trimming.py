"""Convolutions trimmed of kernel offsets in the padding and of columns nobody reads.

Where a 3x3 filter of dilation 24 lies on 33x33 pixels, as in DeepLab, three of four of its products
are of padding.  ``cut_padding_taps`` drops taps that see only padding.  The results of a corner see
four taps, those of the middle one: ``split_by_padding`` computes pieces of the image, each with the
taps that see it.  ``cut_unread_columns`` computes no columns at the ends that nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Conv, Reshape, Slice
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    decide,
    decide_equal,
    decide_max,
    decide_min,
    fixed,
    is_free,
)
from quantglow.transforms.lowering.rules import tag
from quantglow.transforms.rewrite import Uses, decline, rewrite_pass

MOST_PIECES = 5
"""Maximum number of pieces of an axis: each has weights and code of its own."""

LEAST_PIXELS = 128
"""Minimum number of results of a channel: on small images to read weights again costs more than
products."""

MOST_PRODUCTS = 0.9
"""Maximum share of the products along an axis that pieces leave."""

WIDTH = 2
"""The axis of columns in the result of a Conv."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class OffsetRange:
    """The taps from ``first`` to before ``end`` along one axis, of ``count``."""

    first: int
    end: int
    count: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.end)


@rewrite_pass("cut-padding-taps")
def cut_padding_taps(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w) -> Conv(x, w[a:b, c:d]) with less padding, where the other taps see only that"""
    if not isinstance(node, Conv) or not isinstance(node.w, Constant) or not has_padding(node.pads):
        return None
    if any(map(is_free, (*node.x.type.shape, *node.type.shape))):
        return None
    rows, columns = _read_offsets(node, 0), _read_offsets(node, 1)
    if rows.end - rows.first == rows.count and columns.end - columns.first == columns.count:
        return None
    if not np.isfinite(node.w.value).all():  # An infinite weight times padding is no number.
        return None
    w = replace(node.w, name=tag(node, "seen"), value=node.w.value[rows.slice, columns.slice])
    (top, left, bottom, right), (down, across) = node.pads, node.dilations
    pads = (
        top - rows.first * down,
        left - columns.first * across,
        bottom - (rows.count - rows.end) * down,
        right - (columns.count - columns.end) * across,
    )
    return replace(node, w=w, pads=pads)


def _read_offsets(conv: Conv, axis: int) -> OffsetRange:
    """The taps along an axis from the first to the last that see a pixel; all if none does."""
    size, results = conv.x.type.fixed_shape[1 + axis], conv.type.fixed_shape[1 + axis]
    count, dilation = conv.w.type.fixed_shape[axis], conv.dilations[axis]
    before, after = fixed((conv.pads[axis], conv.pads[2 + axis]))
    reach = (results - 1) * conv.strides[axis]
    starts = [tap * dilation - before for tap in range(count)]
    inside = [tap for tap, start in enumerate(starts) if start + reach >= 0 and start < size]
    if not inside:
        return OffsetRange(0, count, count)
    # No padding becomes negative.
    first = min(inside[0], before // dilation)
    end = count - min(count - 1 - inside[-1], after // dilation)
    return OffsetRange(first, end, count)


@dataclass(frozen=True)
class ResultRange:
    """Results of an axis from ``begin`` on, which see the taps from ``first`` on."""

    begin: int
    length: int
    first: int
    taps: int


@rewrite_pass("split-by-padding")
def split_by_padding(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w) -> Concat(Conv(x[…], w[a:b]), …) along an axis where many taps see padding"""
    if not isinstance(node, Conv) or not isinstance(node.w, Constant) or not has_padding(node.pads):
        return None
    if any(map(is_free, (*node.x.type.shape, *node.type.shape))) or node.depthwise:
        return None
    if math.prod(node.type.fixed_shape[1:3]) < LEAST_PIXELS:
        return None
    for axis in (0, 1):
        pieces = result_ranges(node, axis)
        if not _pays(pieces, node.w.type.fixed_shape[axis]):
            continue
        if not np.isfinite(node.w.value).all():
            decline(node, "an infinite weight times padding is no number")
            return None
        parts = tuple(_cut_range(node, axis, piece) for piece in pieces)
        return Concat(name=node.name, parts=parts, axis=1 + axis)
    return None


def result_ranges(conv: Conv, axis: int) -> list[ResultRange]:
    """The longest pieces of an axis whose results see the same taps; 0 taps where there is only
    padding."""
    size, results = conv.x.type.fixed_shape[1 + axis], conv.type.fixed_shape[1 + axis]
    places = np.arange(conv.w.type.fixed_shape[axis]) * conv.dilations[axis] - int(conv.pads[axis])
    read = np.arange(results)[:, None] * conv.strides[axis] + places
    pieces: list[ResultRange] = []
    begin = 0
    for mask, group in groupby(map(tuple, (read >= 0) & (read < size))):
        length = len(list(group))
        pieces.append(ResultRange(begin, length, mask.index(True) if any(mask) else 0, sum(mask)))
        begin += length
    return pieces


def _pays(pieces: Sequence[ResultRange], taps: int) -> bool:
    """Whether a convolution in these pieces needs clearly fewer products."""
    if not 1 < len(pieces) <= MOST_PIECES or any(piece.taps == 0 for piece in pieces):
        return False
    products = sum(piece.length * piece.taps for piece in pieces)
    return products <= MOST_PRODUCTS * taps * sum(piece.length for piece in pieces)


def _cut_range(conv: Conv, axis: int, piece: ResultRange) -> Conv:
    """The convolution of a piece, without padding along the axis."""
    assert isinstance(conv.w, Constant)
    name = tag(conv, f"{('rows', 'columns')[axis]}{piece.begin}")
    stride, dilation = conv.strides[axis], conv.dilations[axis]
    start = piece.begin * stride - int(conv.pads[axis]) + piece.first * dilation
    size = (piece.length - 1) * stride + (piece.taps - 1) * dilation + 1
    weights = conv.w.value.take(range(piece.first, piece.first + piece.taps), axis)
    top, left, bottom, right = conv.pads
    residual = conv.residual
    if residual is not None:
        residual = _slice_axis(residual, f"{name}:residual", axis, piece.begin, piece.length)
    return replace(
        conv,
        name=name,
        x=_slice_axis(conv.x, f"{name}:x", axis, start, size),
        w=replace(conv.w, name=f"{name}:w", value=weights),
        residual=residual,
        pads=(0, left, 0, right) if axis == 0 else (top, 0, bottom, 0),
    )


def _slice_axis(x: Node, name: str, axis: int, start: int, size: int) -> Node:
    """Rows or columns of an image."""
    if decide(size == x.type.shape[1 + axis]):
        return x
    starts, sizes = [0] * 4, list(x.type.shape)
    starts[1 + axis], sizes[1 + axis] = start, size
    return Slice(name=name, x=x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * 4)


@dataclass(frozen=True)
class ColumnRange:
    """``count`` columns from ``first`` on, along ``axis`` of a value."""

    axis: int
    first: Dim
    count: Dim


def cut_unread_columns(graph: Graph) -> Graph:
    """Slice(Conv(x)) -> Slice(Conv(Slice(x))) if all readers of the Conv, or of a Reshape without
    an axis of size 1 behind it, are Slices that leave out the same columns
    """
    cuts = dict(entry for node in graph.nodes for entry in _cuts_at(node, graph))
    if not cuts:
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        if node in cuts:
            new[node] = _cut(node, operands, cuts[node])
        else:
            new[node] = node if operands == node.operands else node.with_operands(operands)
    return graph.with_outputs(new[node] for _, node in graph.outputs)


def _cuts_at(conv: Node, graph: Graph) -> Iterator[tuple[Node, ColumnRange]]:
    """A Conv of which columns are left out, and what reads it, each with the columns."""
    if not isinstance(conv, Conv) or has_padding(conv.pads) or conv.residual is not None:
        return
    reshape, axis, readers = None, WIDTH, graph.users[conv]
    if len(readers) == 1 and isinstance(readers[0], Reshape):
        reshape = readers[0]
        axis, readers = _kept_axis(conv.type.shape, reshape.shape), graph.users[reshape]
    slices = [node for node in readers if isinstance(node, Slice)]
    outputs = {node for _, node in graph.outputs}
    if not slices or len(slices) < len(readers) or outputs & {conv, reshape} or axis < 0:
        return
    dense = [node for node in slices if decide(node.steps[axis] == 1)]
    read = [(node.starts[axis], node.sizes[axis]) for node in dense]
    if len(read) < len(slices) or any(is_free(start) or is_free(size) for start, size in read):
        return
    first = decide_min(*(start for start, _ in read))
    count = decide_max(*(start + size for start, size in read)) - first
    if decide(count > 0) and decide(count < conv.type.shape[WIDTH]):
        yield conv, ColumnRange(WIDTH, first, count)
        yield from ((node, ColumnRange(axis, first, count)) for node in (reshape, *slices) if node)


def _kept_axis(shape: Shape, squeezed: Shape) -> int:
    """The axis of columns in ``squeezed``, ``shape`` without an axis of size 1; -1 if it is not."""
    if len(squeezed) == len(shape) - 1 and decide(shape[WIDTH] != 1):
        for axis, size in enumerate(shape):
            left = shape[:axis] + shape[axis + 1 :]
            if decide(size == 1) and decide_equal(left, squeezed):
                return WIDTH - (axis < WIDTH)
    return -1


def _cut(node: Node, operands: tuple[Node, ...], columns: ColumnRange) -> Node:
    """A node of a chain for the columns that are read."""
    if isinstance(node, Conv):
        return node.with_operands((_read_by(node, operands[0], columns), *operands[1:]))
    if isinstance(node, Reshape):
        return replace(node, x=operands[0], shape=_change(node.shape, columns.axis, columns.count))
    assert isinstance(node, Slice)
    start = node.starts[columns.axis] - columns.first
    return replace(node, x=operands[0], starts=_change(node.starts, columns.axis, start))


def _read_by(conv: Conv, x: Node, columns: ColumnRange) -> Slice:
    """The columns of x from which those of the result are computed."""
    (n, h, _, c), stride = x.type.shape, conv.strides[1]
    reach = (conv.w.type.shape[1] - 1) * conv.dilations[1]
    return Slice(
        name=tag(conv, "read"),
        x=x,
        starts=(0, 0, columns.first * stride, 0),
        sizes=(n, h, (columns.count - 1) * stride + reach + 1, c),
        steps=(1, 1, 1, 1),
    )


def _change(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    return (*items[:at], item, *items[at + 1 :])
