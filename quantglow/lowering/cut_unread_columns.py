"""Convolutions compute no columns at their ends that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.lowering.rules import tag
from quantglow.ops import Conv, Reshape, Slice
from quantglow.symbolic.size import is_free

WIDTH = 2
"""The axis of columns in the result of a Conv."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Columns:
    """``count`` columns from ``first`` on, along ``axis`` of a value."""

    axis: int
    first: int
    count: int


def cut_unread_columns(graph: Graph) -> Graph:
    """Slice(Conv(x)) -> Slice(Conv(Slice(x))) if all readers of the Conv, or of a Reshape without
    an axis of size 1 behind it, are Slices that leave out the same columns
    """
    cuts = dict(found for node in graph.nodes for found in cuts_at(node, graph))
    if not cuts:
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        if node in cuts:
            new[node] = cut(node, operands, cuts[node])
        else:
            new[node] = node if operands == node.operands else node.with_operands(operands)
    return graph.with_outputs(new[node] for _, node in graph.outputs)


def cuts_at(conv: Node, graph: Graph) -> Iterator[tuple[Node, Columns]]:
    """A Conv of which columns are left out, and what reads it, each with the columns."""
    if not isinstance(conv, Conv) or any(conv.pads) or conv.residual is not None:
        return
    reshape, axis, readers = None, WIDTH, graph.users[conv]
    if len(readers) == 1 and isinstance(readers[0], Reshape):
        reshape = readers[0]
        axis, readers = kept_axis(conv.type.shape, reshape.shape), graph.users[reshape]
    slices = [node for node in readers if isinstance(node, Slice)]
    outputs = {node for _, node in graph.outputs}
    if not slices or len(slices) < len(readers) or outputs & {conv, reshape} or axis < 0:
        return
    read = [(node.starts[axis], node.sizes[axis]) for node in slices if node.steps[axis] == 1]
    if len(read) < len(slices) or any(is_free(start) or is_free(size) for start, size in read):
        return
    first = min(start for start, _ in read)
    count = max(start + size for start, size in read) - first
    if 0 < count < conv.type.shape[WIDTH]:
        yield conv, Columns(WIDTH, first, count)
        yield from ((node, Columns(axis, first, count)) for node in (reshape, *slices) if node)


def kept_axis(shape: tuple[int, ...], kept: tuple[int, ...]) -> int:
    """The axis of columns in ``kept``, if that is ``shape`` without an axis of size 1; else -1."""
    if len(kept) == len(shape) - 1 and shape[WIDTH] != 1:
        for axis, size in enumerate(shape):
            if size == 1 and shape[:axis] + shape[axis + 1 :] == kept:
                return WIDTH - (axis < WIDTH)
    return -1


def cut(node: Node, operands: tuple[Node, ...], columns: Columns) -> Node:
    """A node of a chain for the columns that are read."""
    if isinstance(node, Conv):
        return node.with_operands((read_by(node, operands[0], columns), *operands[1:]))
    if isinstance(node, Reshape):
        return replace(node, x=operands[0], shape=changed(node.shape, columns.axis, columns.count))
    assert isinstance(node, Slice)
    start = node.starts[columns.axis] - columns.first
    return replace(node, x=operands[0], starts=changed(node.starts, columns.axis, start))


def read_by(conv: Conv, x: Node, columns: Columns) -> Slice:
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


def changed(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    return (*items[:at], item, *items[at + 1 :])
