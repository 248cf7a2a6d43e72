"""align-inputs: quantize an input with the steps of the 8-bit numbers it was made of.

Images come as bytes p and are normalized, often channel by channel: x = (p - mean) / deviation.
One scale and zero point for all channels round such values a second time, although each channel has
only 256 of them.  If calibration samples show the grid

    x = step * level + offset,      level = -128 … 127, for each channel

the levels are computed first, in float (``Mul``, ``Add``), and rounding them to int8 is exact.  The
convolutions that read x take ``w * step`` and ``b + sum of w * offset``.  Padding is x = 0, whose
level differs by channel: Constants frame the levels (``Concat``) instead.

If all channels share a grid with a level at 0, only the range changes.  A second rounding on
another grid would add noise of power step**2 / 12 (Vanderkooy and Lipshitz, 1987, on dithering of
audio).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Add, Concat, Conv, Mul, Transpose
from quantglow.ir.ops.windows import fixed_pads, has_padding
from quantglow.ir.symbolic.size import decide
from quantglow.profiling import Range
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.channel_groups import takes_factors
from quantglow.quantization.equalize.equalization import ConstantOwner, by_row
from quantglow.support.arrays import Array

Grids = Mapping[str, Array]
"""Name of an input, or of its only Transpose -> [2, C]: step and offset of each channel."""

LOWEST, HIGHEST = -128, 127
MIN_LEVELS = 200
"""Minimum number of levels from the smallest to the largest value seen.  Fewer might be every other
level of the grid."""

TOLERANCE = 0.01
"""Maximum distance of a value from its level, in steps."""

LEVELS = Range(float(LOWEST), float(HIGHEST))


def input_grids(graph: Graph, samples: Sequence[Feeds]) -> Grids:
    """The grid of each input that convolutions read, if all its values lie on one."""
    grids = {}
    for node in graph.inputs:
        value = _read_value(graph, node)
        if value is None:
            continue
        grid = _grid(_channels_last(feeds[node.name], node, value) for feeds in samples)
        if grid is not None and _holds_zero(grid, _readers(graph, value)[0]):
            grids[value.name] = grid
    return grids


def _read_value(graph: Graph, node: Input) -> Node | None:
    """The input in the layout of the convolutions that alone read it."""
    value: Node = node
    users = graph.users[node]
    if len(users) == 1 and isinstance(users[0], Transpose):
        value = users[0]
    readers, outputs = _readers(graph, value), {output for _, output in graph.outputs}
    alone = len(readers) == len(graph.users[value]) > 0 and value not in outputs
    alike = len({conv.pads for conv in readers}) == 1
    return value if alone and alike and node.type.dtype.is_float else None


def _readers(graph: Graph, value: Node) -> list[Conv]:
    users = graph.users[value]
    return [u for u in users if isinstance(u, Conv) and u.x is value and takes_factors(u)]


def _channels_last(x: Array, node: Input, value: Node) -> Array:
    array = np.asarray(x)
    return array.transpose(value.perm) if isinstance(value, Transpose) else array


def _grid(images: Iterator[Array]) -> Array | None:
    """[2, C] for images [N, H, W, C]; None as soon as one has other values."""
    channels: list[Array] = []
    for image in images:
        rows = image.reshape(-1, image.shape[-1]).T
        channels = channels or [np.zeros(0, np.float32)] * len(rows)
        channels = [np.union1d(old, row) for old, row in zip(channels, rows, strict=True)]
        if max(map(len, channels)) > HIGHEST - LOWEST + 1:
            return None
    grids = [_step_and_offset(values.astype(np.float64)) for values in channels]
    exact = [grid for grid in grids if grid is not None]
    return np.array(exact, np.float64).T if exact and len(exact) == len(grids) else None


def _step_and_offset(values: Array) -> tuple[float, float] | None:
    """The grid of ascending distinct values; the levels seen lie in the middle of all levels."""
    if len(values) < 2:
        return None
    distances = values - values[0]
    levels = np.rint(distances / np.diff(values).min())
    count = int(levels[-1]) + 1
    if not MIN_LEVELS <= count <= HIGHEST - LOWEST + 1:
        return None
    step = float(levels @ distances / (levels @ levels))
    if np.abs(distances - levels * step).max() > TOLERANCE * step:
        return None
    lowest = LOWEST + (HIGHEST - LOWEST + 1 - count) // 2
    return step, float(values[0] - lowest * step)


def _holds_zero(grid: Array, reader: Conv) -> bool:
    """Whether padding has a level."""
    zeros = _zeros(grid)
    return not has_padding(reader.pads) or bool(np.all((zeros >= LOWEST) & (zeros <= HIGHEST)))


def _zeros(grid: Array) -> Array:
    return np.asarray(-grid[1] / grid[0])


def align_inputs(graph: Graph, grids: Grids) -> tuple[Graph, dict[str, Range]]:
    """The same function with levels of the inputs that have a grid, and the levels' ranges."""
    results: dict[Node, Node] = {}
    levels: dict[Node, list[Node]] = {}
    ranges: dict[str, Range] = {}
    owner = ConstantOwner.of(graph)
    for node in graph.nodes:
        moved = node.with_operands(tuple(results[operand] for operand in node.operands))
        if isinstance(node, Conv) and node.x.name in grids:
            grid = grids[node.x.name]
            if _is_shared(grid):
                reals = [float(grid[0, 0] * level + grid[1, 0]) for level in (LOWEST, HIGHEST)]
                ranges |= {x.name: Range(*reals) for x in (node.x, *node.x.operands)}
            else:
                if node.x not in levels:
                    levels[node.x] = _levels(results[node.x], grid, node, owner.names)
                ranges |= {x.name: LEVELS for x in levels[node.x]}
                moved = _reading(node, levels[node.x][-1], grid, owner)
        results[node] = moved
    return graph.with_outputs(results[node] for _, node in graph.outputs), ranges


def _is_shared(grid: Array) -> bool:
    """Whether one scale and zero point suffice for all channels."""
    zeros = _zeros(grid)
    alike = np.abs(grid[0] / grid[0, 0] - 1) * (HIGHEST - LOWEST) + np.abs(zeros - zeros[0])
    return bool(np.all(alike <= TOLERANCE) and np.abs(zeros - np.rint(zeros)).max() <= TOLERANCE)


def _levels(x: Node, grid: Array, reader: Conv, names: Names) -> list[Node]:
    """``(x - offset) / step``, then framed as the reader pads."""

    def name(kind: str) -> str:
        return names.fresh(f"{x.name}:{kind}")

    factor = _constant(name("per-step"), 1 / grid[0])
    scaled = Mul(name=name("scaled"), x=x, y=factor)
    zeros = _zeros(grid)
    steps: list[Node] = [Add(name=name("levels"), x=scaled, y=_constant(name("zeros"), zeros))]
    top, left, bottom, right = fixed_pads(reader.pads)
    for axis, before, after, kind in ((2, left, right, "columns"), (1, top, bottom, "rows")):
        parts: list[Node] = [
            _border(name(f"{kind}-before"), steps[-1], axis, before, zeros),
            steps[-1],
            _border(name(f"{kind}-after"), steps[-1], axis, after, zeros),
        ]
        parts = [part for part in parts if decide(part.type.shape[axis] != 0)]
        if len(parts) > 1:
            steps.append(Concat(name=name(kind), parts=tuple(parts), axis=axis))
    return steps


def _border(name: str, x: Node, axis: int, size: int, zeros: Array) -> Constant:
    around = x.type.fixed_shape
    shape = (*around[:axis], size, *around[axis + 1 :])
    return _constant(name, np.broadcast_to(zeros, shape))


def _constant(name: str, value: Array) -> Constant:
    return Constant(name=name, value=np.ascontiguousarray(value, np.float32))


def _reading(node: Conv, x: Node, grid: Array, owner: ConstantOwner) -> Node:
    """The convolution of levels: ``w (step * level + offset) + b``."""
    w: Any = node.w
    weights = w.value.astype(np.float64)
    steps, offsets = (by_row(row, node) for row in grid)
    bias = (weights * offsets).sum(axis=(0, 1, 2))
    b: Any = node.b
    if b is not None:
        bias = bias + b.value
    w = owner.constant(node, "w", weights * steps)
    return replace(node, x=x, w=w, b=owner.constant(node, "b", bias), pads=(0, 0, 0, 0))
