"""Convolutions of wide dilations in pieces of the image, each with the taps that see it.

Where a 3x3 filter of dilation 24 lies on 33x33 pixels, as in DeepLab, three of four of its products
are of padding.  The results of a corner see four taps, those of the middle one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.lowering.rules import tag
from quantglow.ops import Concat, Conv, Slice
from quantglow.symbolic.size import is_free

MOST_PIECES = 5
"""Maximum number of pieces of an axis: each has weights and code of its own."""
LEAST_PIXELS = 128
"""Minimum number of results of a channel: on small images to read weights again costs more than
products."""
MOST_PRODUCTS = 0.9
"""Maximum share of the products along an axis that pieces leave."""


@dataclass(frozen=True)
class Piece:
    """Results of an axis from ``begin`` on, which see the taps from ``first`` on."""

    begin: int
    length: int
    first: int
    taps: int


@rewrite_pass("split-by-padding")
def split_by_padding(node: Node, uses: Uses) -> Node | None:
    """Conv(x, w) -> Concat(Conv(x[…], w[a:b]), …) along an axis where many taps see padding"""
    if not isinstance(node, Conv) or not isinstance(node.w, Constant) or not any(node.pads):
        return None
    if any(map(is_free, (*node.x.type.shape, *node.type.shape))) or node.depthwise:
        return None
    if prod(node.type.shape[1:3]) < LEAST_PIXELS:
        return None
    for axis in (0, 1):
        pieces = pieces_of(node, axis)
        if not pays(pieces, node.w.type.shape[axis]):
            continue
        if not np.isfinite(node.w.value).all():
            declined(node, "an infinite weight times padding is no number")
            return None
        parts = tuple(part_of(node, axis, piece) for piece in pieces)
        return Concat(name=node.name, parts=parts, axis=1 + axis)
    return None


def pieces_of(conv: Conv, axis: int) -> list[Piece]:
    """The longest pieces of an axis whose results see the same taps; 0 taps where there is only
    padding."""
    size, results = conv.x.type.shape[1 + axis], conv.type.shape[1 + axis]
    places = np.arange(conv.w.type.shape[axis]) * conv.dilations[axis] - conv.pads[axis]
    read = np.arange(results)[:, None] * conv.strides[axis] + places
    found: list[Piece] = []
    begin = 0
    for seen, group in groupby(map(tuple, (read >= 0) & (read < size))):
        length = len(list(group))
        found.append(Piece(begin, length, seen.index(True) if any(seen) else 0, sum(seen)))
        begin += length
    return found


def pays(pieces: Sequence[Piece], taps: int) -> bool:
    """Whether a convolution in these pieces needs clearly fewer products."""
    if not 1 < len(pieces) <= MOST_PIECES or any(piece.taps == 0 for piece in pieces):
        return False
    products = sum(piece.length * piece.taps for piece in pieces)
    return products <= MOST_PRODUCTS * taps * sum(piece.length for piece in pieces)


def part_of(conv: Conv, axis: int, piece: Piece) -> Conv:
    """The convolution of a piece, without padding along the axis."""
    assert isinstance(conv.w, Constant)
    name = tag(conv, f"{('rows', 'columns')[axis]}{piece.begin}")
    stride, dilation = conv.strides[axis], conv.dilations[axis]
    start = piece.begin * stride - conv.pads[axis] + piece.first * dilation
    size = (piece.length - 1) * stride + (piece.taps - 1) * dilation + 1
    weights = conv.w.value.take(range(piece.first, piece.first + piece.taps), axis)
    top, left, bottom, right = conv.pads
    residual = conv.residual
    if residual is not None:
        residual = sliced(residual, f"{name}:residual", axis, piece.begin, piece.length)
    return replace(
        conv,
        name=name,
        x=sliced(conv.x, f"{name}:x", axis, start, size),
        w=replace(conv.w, name=f"{name}:w", value=weights),
        residual=residual,
        pads=(0, left, 0, right) if axis == 0 else (top, 0, bottom, 0),
    )


def sliced(x: Node, name: str, axis: int, start: int, size: int) -> Node:
    """Rows or columns of an image."""
    if size == x.type.shape[1 + axis]:
        return x
    starts, sizes = [0] * 4, list(x.type.shape)
    starts[1 + axis], sizes[1 + axis] = start, size
    return Slice(name=name, x=x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * 4)
