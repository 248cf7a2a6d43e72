"""Importers of operators that write at indices computed at run time."""

from __future__ import annotations

import math

from quantglow.frontend.nodes.context import Call, importer
from quantglow.frontend.operators.indexing import (
    Bound,
    coordinates,
    dotted,
    element_positions,
    iota,
    positions,
    reshaped,
    strides_of,
)
from quantglow.frontend.operators.shape import normal
from quantglow.graph.node import Node
from quantglow.ops import Scatter
from quantglow.ops.expression import arg, lconst
from quantglow.ops.expression import call as fn


@importer("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    (axis,) = normal((call.integer("axis", 0),), x.type.rank)
    if updates.type.shape != indices.type.shape:
        raise ValueError(f"updates are {updates.type}, indices {indices.type}, of other shape")
    rows = element_positions(call, x.type.shape, indices, axis)
    return scattered(call, x, rows, updates, 1)


@importer("ScatterND")
def scatter_nd(call: Call) -> Node:
    x, indices, updates = (call.tensor(i) for i in range(3))
    depth = indices.type.shape[-1]
    sizes = x.type.shape[:depth]
    if updates.type.shape != (*indices.type.shape[:-1], *x.type.shape[depth:]):
        raise ValueError(f"updates are {updates.type}, which indices {indices.type} do not fit")
    bounds = [Bound.of(fn("int64", arg(i)), size) for i, size in enumerate(sizes)]
    terms = [(bound.index, s) for bound, s in zip(bounds, strides_of(sizes), strict=True)]
    rows = positions(call, "rows", dotted(terms), coordinates(call, indices), bounds)
    return scattered(call, x, rows, updates, math.prod(x.type.shape[depth:]))


@importer("TensorScatter")
def tensor_scatter(call: Call) -> Node:
    """A cache with ``updates`` written along ``axis``, from ``write_indices`` of each sample on;
    ``circular``: what goes over the end goes on at the begin, as often as it has to.
    """
    x, updates = call.tensor(0), call.tensor(1)
    (axis,) = normal((call.integer("axis", -2),), x.type.rank)
    circular = call.text("mode", "linear") == "circular"
    start = call.tensor(2) if call.has(2) else None
    return written(call, x, updates, axis, start, circular, call.result)


def written(
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
        first = reshaped(call, start, (places[0], *(1 for _ in places[1:])))
        step, args = fn("iadd", step, fn("int64", arg(1))), [*args, first]
    index = step
    if circular:
        step = index = fn("imod", step, lconst(sizes[axis]))
        if start is not None:
            given = fn("int64", arg(1))
            index = fn("select", fn("ge", given, lconst(0)), step, given)
    terms = [(step, 1)]
    for other, stride in enumerate(strides_of(sizes)[:-1]):
        terms.append((arg(len(args)), stride))
        args.append(iota(call, places, other))
    rows = positions(call, "rows", dotted(terms), args, [Bound(index, index, sizes[axis])])
    width = math.prod(x.type.shape[axis + 1 :])
    return scattered(call, x, rows, updates, width, name or call.derived("written"))


def scattered(
    call: Call, x: Node, rows: Node, updates: Node, width: int, name: str | None = None
) -> Node:
    """x with rows of ``width`` elements updated, by default the result of the ONNX node."""
    made = Scatter(
        name=name or call.result,
        x=reshaped(call, x, (x.type.size // width, width)),
        indices=reshaped(call, rows, (rows.type.size,)),
        updates=reshaped(call, updates, (rows.type.size, width)),
        reduction=call.text("reduction", "none"),
    )
    return reshaped(call, made, x.type.shape)
