"""Importer of GridSample: gathers of the pixels around each position, weighted and added."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.frontend.context import Call, Unsupported, importer
from quantglow.frontend.operators.indexing import INT64, coordinates, dotted, iota, reshaped
from quantglow.frontend.operators.layout import channels_first, channels_last
from quantglow.graph.node import Node
from quantglow.ops import Gather, Map
from quantglow.ops.binary import Add, Mul
from quantglow.ops.expression import Expr, arg, const, lconst
from quantglow.ops.expression import call as fn
from quantglow.types import DType, ElementType

FLOAT = ElementType(DType.F32)


@dataclass(frozen=True)
class Axis:
    """One axis of the image: where in pixels a grid coordinate lies."""

    coordinate: Expr
    size: int
    padding: str
    align: bool

    def position(self) -> Expr:
        """In pixels, brought into the image unless it is padded with zeros."""
        moved = fn("add", self.coordinate, const(1))
        if self.align:
            place = fn("mul", moved, const((self.size - 1) / 2))
        else:
            place = fn("sub", fn("mul", moved, const(self.size / 2)), const(0.5))
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

    def weight(self, place: Expr, share: Expr) -> Expr:
        """The share of a pixel, 0 outside of the image."""
        inside = fn("and", fn("ge", place, const(0)), fn("le", place, const(self.size - 1)))
        return fn("select", inside, share, const(0))


@importer("GridSample")
def grid_sample(call: Call) -> Node:
    """Of images.  The modes "bilinear" and "linear" are one."""
    if len(call.shape(0)) != 4:
        raise Unsupported(f"{len(call.shape(0)) - 2} spatial axes; 2 are supported")
    mode, padding = call.text("mode", "linear"), call.text("padding_mode", "zeros")
    if mode not in ("linear", "bilinear", "nearest"):
        raise Unsupported(f"interpolation mode {mode!r}")
    x = channels_last(call, call.node(0), call.value_name(0))
    n, h, w, c = x.type.shape
    args = [*coordinates(call, call.node(1))]
    args.append(iota(call, args[0].type.shape, 0))
    align = bool(call.integer("align_corners", 0))
    across, down = (Axis(arg(i), size, padding, align) for i, size in ((0, w), (1, h)))
    table = reshaped(call, x, (n * h * w, c))
    samples = [
        (
            dotted([(down.pixel(row), w), (across.pixel(column), 1), (arg(2), h * w)]),
            fn("mul", down.weight(row, row_share), across.weight(column, column_share)),
        )
        for row, row_share in corners(down, mode)
        for column, column_share in corners(across, mode)
    ]
    if len(samples) == 1:
        return channels_first(call, weighted(call, call.result, table, args, *samples[0]))
    total, *parts = (weighted(call, call.derived("part"), table, args, *s) for s in samples)
    for i, part in enumerate(parts, 1):
        name = call.result if i == len(parts) else call.derived("sum")
        total = Add(name=name, x=total, y=part)
    return channels_first(call, total)


def corners(axis: Axis, mode: str) -> list[tuple[Expr, Expr]]:
    """The pixels along an axis that a position lies between, and their shares."""
    place = axis.position()
    if mode == "nearest":
        return [(fn("rint", place), const(1))]
    before = fn("floor", place)
    after = fn("add", before, const(1))
    return [(before, fn("sub", after, place)), (after, fn("sub", place, before))]


def weighted(
    call: Call, name: str, table: Node, args: list[Node], pixel: Expr, weight: Expr
) -> Node:
    """Pixels [N, H, W, C] times their weights [N, H, W, 1]."""
    rows = Map(name=call.derived("pixel"), args=tuple(args), expression=pixel, out=INT64)
    found = Gather(name=call.derived("value"), x=table, indices=rows, axis=0)
    share = Map(name=call.derived("weight"), args=tuple(args[:2]), expression=weight, out=FLOAT)
    column = reshaped(call, share, (*share.type.shape, 1))
    return Mul(name=name, x=found, y=column)
