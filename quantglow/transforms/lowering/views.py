"""Transposes and Reshapes moved past element-wise primitives, to where they are views.

Transposes move above: there they are views, and the element-wise kernel writes its result in the
consumer's layout.

Reshapes of transposed or expanded values move below the primitive that reads them.  Such a reshape
is no view: the value would be copied before it is read once.  So the primitive takes the shape
before the reshape, its *cells*; its result is dense, and reshaping that costs nothing.  Enlarging
an image by a whole factor is such a value, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Elementwise, Expand, Reshape, Resize, Table, Transpose
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    Size,
    decide,
    decide_equal,
    prod,
    surely_equal,
)
from quantglow.transforms.lowering.rules import tag
from quantglow.transforms.rewrite import Uses, rewrite_pass

MOST_ROWS = 2**14
"""Rows or columns of a free number for which taps of a Resize are compared."""


@rewrite_pass("raise-transpose")
def raise_transpose(node: Node, uses: Uses) -> Node | None:
    """Transpose(Elementwise(x)) -> Elementwise(Transpose(x)), the same for Table; for values with
    one reader only"""
    if not isinstance(node, Transpose) or not isinstance(node.x, Elementwise | Table):
        return None
    inner = node.x
    if not uses.only(node, inner):
        return None
    if isinstance(inner, Elementwise) and all(
        decide_equal(a.type.shape, inner.type.shape) for a in inner.args
    ):
        args = tuple(_transpose(node, a, f"operand{i}") for i, a in enumerate(inner.args))
        return replace(inner, name=node.name, args=args)
    if isinstance(inner, Table):
        return replace(inner, name=node.name, x=_transpose(node, inner.x, "operand"))
    return None


def _transpose(node: Transpose, operand: Node, role: str) -> Transpose:
    return Transpose(name=tag(node, role), x=operand, perm=node.perm)


@rewrite_pass("sink-reshape-into-elementwise")
def sink_reshape_into_elementwise(node: Node, uses: Uses) -> Node | None:
    """Elementwise(Reshape(Transpose(x)), …) -> Reshape(Elementwise(Transpose(x), …)),
    also for Expand and Resize"""
    if not isinstance(node, Elementwise | Table) or node.type.is_empty:
        return None
    operands = node.args if isinstance(node, Elementwise) else (node.x,)
    for operand in operands:
        if decide_equal(operand.type.shape, node.type.shape) and uses.single(operand):
            cells = _cells(operand)
            if cells is not None:
                return _on_cells(node, operands, operand, cells)
    return None


def _cells(node: Node) -> Node | None:
    """The view that ``node`` is a copy of."""
    if isinstance(node, Reshape) and isinstance(node.x, Transpose | Expand):
        return node.x
    return _repeat(node) if isinstance(node, Resize) else None


def _repeat(node: Resize) -> Node | None:
    """Every pixel ``fh`` by ``fw`` times: Expand of [N, H, 1, W, 1, C]."""
    n, h, w, c = node.x.type.shape
    fh, fw = node.sizes[0] // h, node.sizes[1] // w
    if node.mode != "nearest" or isinstance(fh, Size) or isinstance(fw, Size):
        return None
    if not surely_equal(node.sizes, (fh * h, fw * w)):
        return None
    if not (_repeats(node, 0, fh) and _repeats(node, 1, fw)):
        return None
    pixels = Reshape(name=tag(node, "pixels"), x=node.x, shape=(n, h, 1, w, 1, c))
    return Expand(name=tag(node, "repeated"), x=pixels, shape=(n, h, fh, w, fw, c))


def _repeats(node: Resize, axis: int, factor: int) -> bool:
    """Whether every row (column) comes ``factor`` times, without others between."""
    length = node.x.type.shape[axis + 1]
    if isinstance(length, Size):
        # The nearest row of a longer image is the same, if it does not depend on the length.
        if decide(length > MOST_ROWS) or node.coordinates not in ("asymmetric", "half_pixel"):
            return False
        length = MOST_ROWS
    resized = length * factor
    return np.array_equal(node.nearest(axis, length, resized), np.arange(resized) // factor)


def _on_cells(
    node: Elementwise | Table, operands: Sequence[Node], moved: Node, cells: Node
) -> Reshape | None:
    """The node computed in the shape of ``cells``, which stands for the operand ``moved``."""
    groups = group(node.type.shape, cells.type.shape)
    others = [operand for operand in operands if operand is not moved]
    # Cutting the axes of another view would need the copy that this one is spared.
    if groups is None or any(isinstance(other, Transpose | Expand) for other in others):
        return None
    args = [
        cells if operand is moved else _split(node, index, operand, groups)
        for index, operand in enumerate(operands)
    ]
    name = tag(node, "cells")
    if isinstance(node, Elementwise):
        inner: Node = replace(node, name=name, args=tuple(args))
    else:
        inner = replace(node, name=name, x=args[0])
    return Reshape(name=node.name, x=inner, shape=node.type.shape)


def _split(node: Node, index: int, operand: Node, groups: Sequence[Shape]) -> Node:
    """An operand, broadcast or not, with its axes split as ``groups`` say."""
    if operand.type.is_single:
        return operand
    missing = len(groups) - operand.type.rank
    shape: list[Dim] = []
    for size, group in zip((*(1,) * missing, *operand.type.shape), groups, strict=True):
        shape += group if decide(size == prod(group)) else (1,) * len(group)
    return Reshape(name=tag(node, f"operand{index}-cells"), x=operand, shape=tuple(shape))


def group(shape: Shape, cells: Shape) -> list[Shape] | None:
    """For each axis of ``shape`` the axes of ``cells`` that it is cut into, None where one axis of
    the cells belongs to several.  No axis is empty."""
    tail, groups = list(cells), list[Shape]()
    for size in shape:
        group: list[Dim] = []
        while tail and (
            decide(prod(group) < size) or (decide(size == 1) and not group and decide(tail[0] == 1))
        ):
            group.append(tail.pop(0))
        if decide(prod(group) != size):
            return None
        groups.append(tuple(group))
    if tail and (not groups or decide(prod(tail) != 1)):
        return None
    return [*groups[:-1], groups[-1] + tuple(tail)] if tail else groups
