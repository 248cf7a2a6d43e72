"""Importers of GridSample, gathers of the pixels around each position, weighted and added; and of
AffineGrid, which makes such positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.indexing import INT64, coordinates, dotted, iota, reshaped
from quantglow.frontend.operators.layout import channels_first, channels_last
from quantglow.graph.node import Node
from quantglow.ops import Elementwise, Gather
from quantglow.ops.binary import Add, Mul
from quantglow.ops.convolution import MatMul
from quantglow.ops.expression import Expr, arg, const, lconst, polynomial
from quantglow.ops.expression import call as fn
from quantglow.ops.shape import Concat, Transpose
from quantglow.types import DType, ElementType

FLOAT = ElementType(DType.F32)


@dataclass(frozen=True)
class Axis:
    """One axis of the image: where in pixels a grid coordinate lies."""

    coordinate: Expr
    size: int
    padding: str
    align: bool

    def place(self) -> Expr:
        """In pixels."""
        moved = fn("add", self.coordinate, const(1))
        if self.align:
            return fn("mul", moved, const((self.size - 1) / 2))
        return fn("sub", fn("mul", moved, const(self.size / 2)), const(0.5))

    def padded(self, place: Expr) -> Expr:
        """A place brought into the image unless it is padded with zeros."""
        if self.padding == "zeros":
            return place
        if self.padding == "reflection":
            place = self._reflected(place)
        return fn("fmin", fn("fmax", place, const(0)), const(self.size - 1))

    def _reflected(self, place: Expr) -> Expr:
        """Mirrored at both edges as often as needed."""
        low, span = (0.0, self.size - 1) if self.align else (-0.5, self.size)
        if not span:
            return const(0)
        distance = fn("abs", fn("sub", place, const(low)))
        period = fn("mul", fn("floor", fn("div", distance, const(2 * span))), const(2 * span))
        within = fn("sub", distance, period)
        back = fn("fmin", within, fn("sub", const(2 * span), within))
        return fn("add", back, const(low))

    def pixel(self, place: Expr) -> Expr:
        """A whole position as an index within the image."""
        index = fn("int64", place)
        return fn("imin", fn("imax", index, lconst(0)), lconst(self.size - 1))

    def inside(self, place: Expr) -> Expr:
        """Whether a whole position is in the image."""
        return fn("and", fn("ge", place, const(0)), fn("le", place, const(self.size - 1)))


@importer("GridSample")
def grid_sample(call: Call) -> Node:
    """GridSample of images; volumes are refused."""
    if len(call.shape(0)) != 4:
        raise Unsupported(f"{len(call.shape(0)) - 2} spatial axes; 2 are supported")
    mode, padding = call.text("mode", "linear"), call.text("padding_mode", "zeros")
    if mode not in CORNERS:
        raise Unsupported(f"interpolation mode {mode!r}")
    x = channels_last(call, call.node(0), call.value_name(0))
    n, h, w, c = x.type.shape
    if call.shape(1)[0] != n:
        raise ValueError(f"{n} images for {call.shape(1)[0]} grids")
    args = [*coordinates(call, call.node(1))]
    args.append(iota(call, args[0].type.shape, 0))
    align = bool(call.integer("align_corners", 0))
    across, down = (Axis(arg(i), size, padding, align) for i, size in ((0, w), (1, h)))
    table = reshaped(call, x, (n * h * w, c))
    if padding == "zeros":
        zeros = call.constant("outside", np.zeros((1, c), np.float32))
        table = Concat(name=call.derived("padded"), parts=(table, zeros), axis=0)

    def position(row: Expr, column: Expr) -> Expr:
        """The row of the table that holds a pixel."""
        found = dotted([(down.pixel(row), w), (across.pixel(column), 1), (arg(2), h * w)])
        if padding != "zeros":
            return found
        inside = fn("and", down.inside(row), across.inside(column))
        return fn("select", inside, found, lconst(n * h * w))

    samples = [
        (position(row, column), fn("mul", row_share, column_share))
        for row, row_share in CORNERS[mode](down)
        for column, column_share in CORNERS[mode](across)
    ]
    if len(samples) == 1:
        return channels_first(call, weighted(call, call.result, table, args, *samples[0]))
    total, *parts = (weighted(call, call.derived("part"), table, args, *s) for s in samples)
    for i, part in enumerate(parts, 1):
        name = call.result if i == len(parts) else call.derived("sum")
        total = Add(name=name, x=total, y=part)
    return channels_first(call, total)


Corners = Callable[[Axis], list[tuple[Expr, Expr]]]
"""The pixels along an axis that a position takes its value from, and their shares."""


def nearest(axis: Axis) -> list[tuple[Expr, Expr]]:
    return [(axis.padded(fn("rint", axis.place())), const(1))]


def part_beyond(place: Expr, before: Expr) -> Expr:
    """The distance from the pixel before; 1 where the place is infinite or NaN."""
    return fn("fmin", fn("sub", place, before), const(1))


def linear(axis: Axis) -> list[tuple[Expr, Expr]]:
    """Two pixels, each padded by itself."""
    place = axis.place()
    before = fn("floor", place)
    t = part_beyond(place, before)
    after = fn("add", before, const(1))
    return [(axis.padded(before), fn("sub", const(1), t)), (axis.padded(after), t)]


def cubic(axis: Axis) -> list[tuple[Expr, Expr]]:
    """Four pixels, each padded by itself: Keys' kernel."""
    place = axis.place()
    before = fn("floor", place)
    t = part_beyond(place, before)
    back = fn("sub", const(1), t)
    shares = (
        outer_share(fn("add", t, const(1))),
        inner_share(t),
        inner_share(back),
        outer_share(fn("add", back, const(1))),
    )
    return [
        (axis.padded(fn("add", before, const(offset))), share)
        for offset, share in zip((-1, 0, 1, 2), shares, strict=True)
    ]


KEYS = -0.75
"""``a`` of the cubic kernel, as in ONNX."""


def inner_share(d: Expr) -> Expr:
    """``(a + 2) d^3 - (a + 3) d^2 + 1`` at a distance up to 1"""
    return polynomial(d, 1, 0, -(KEYS + 3), KEYS + 2).rounded()


def outer_share(d: Expr) -> Expr:
    """``a d^3 - 5 a d^2 + 8 a d - 4 a`` at a distance from 1 to 2"""
    return polynomial(d, -4 * KEYS, 8 * KEYS, -5 * KEYS, KEYS).rounded()


CORNERS: dict[str, Corners] = {
    "nearest": nearest,
    "linear": linear,
    "bilinear": linear,
    "cubic": cubic,
    "bicubic": cubic,
}


def weighted(
    call: Call, name: str, table: Node, args: list[Node], pixel: Expr, weight: Expr
) -> Node:
    """Pixels [N, H, W, C] times their weights [N, H, W, 1]."""
    rows = Elementwise(name=call.derived("pixel"), args=tuple(args), expression=pixel, out=INT64)
    found = Gather(name=call.derived("value"), x=table, indices=rows, axis=0)
    share = Elementwise(
        name=call.derived("weight"), args=tuple(args[:2]), expression=weight, out=FLOAT
    )
    column = reshaped(call, share, (*share.type.shape, 1))
    return Mul(name=name, x=found, y=column)


@importer("AffineGrid")
def affine_grid(call: Call) -> Node:
    """Every place of the image (x, y, 1) or volume (x, y, z, 1), times the matrix of its sample."""
    theta, size = call.node(0), call.array(1, "size").reshape(-1)
    rank = len(size) - 2
    if theta.type.shape != (size[0], rank, rank + 1):
        raise ValueError(f"theta has shape {theta.type.shape}, the size is {size.tolist()}")
    align = bool(call.integer("align_corners", 0))
    call.reserve([int(length) for length in size[2:]], 16 * (rank + 1))
    places = [places_along(int(length), align) for length in size[2:]]
    columns = np.meshgrid(*places, indexing="ij")[::-1]
    rows = np.stack([*columns, np.ones_like(columns[0])], axis=-1).reshape(1, -1, rank + 1)
    turned = Transpose(name=call.derived("columns"), x=theta, perm=(0, 2, 1))
    made = MatMul(name=call.derived("rows"), x=call.constant("places", rows), y=turned)
    return reshaped(call, made, (int(size[0]), *map(int, size[2:]), rank))


def places_along(length: int, align: bool) -> Array:
    """Coordinates from -1 to 1 of the elements of an axis: of their outer edges, or centres.

    A single element aligned with both ends is at 1, as onnxruntime has it; ONNX divides by zero.
    """
    if align:
        return np.arange(length) * (2 / (length - 1)) - 1 if length > 1 else np.ones(1)
    return (2 * np.arange(length) + 1) / length - 1
