"""Importers of Resize, Upsample, GridSample and AffineGrid.

Resize and Upsample changed their defaults three times.  GridSample gathers the pixels around each
position, weights and adds them; AffineGrid makes such positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.tensor.indexing import (
    INT64,
    coordinates,
    dot,
    iota,
    reshape,
)
from quantglow.importer.onnx.operators.tensor.shape import (
    MAX_ELEMENTS,
    channels_first,
    channels_last,
    from_nhwc,
    normal,
    to_nhwc,
)
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Elementwise, Gather
from quantglow.ir.ops.binary import Add, Mul
from quantglow.ir.ops.convolution import MatMul
from quantglow.ir.ops.expression import Expr, arg, const, lconst, polynomial
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.resize import MAX_WEIGHTS, AntialiasedResize, Resize
from quantglow.ir.ops.shape import Concat, Transpose
from quantglow.ir.symbolic.size import (
    Dim,
    Size,
    decide,
    decide_equal,
    integer,
    is_free,
    likely,
    prod,
    surely_divides,
)
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

Entry = TypeVar("Entry")

MAX_FACTOR = 64
"""Numerator and denominator of a scale by which free sizes are multiplied, at most: products with
all sizes of images are exact in float32."""

LONGEST = 2**13
"""Sizes below are multiplied by a fraction in place of a scale that is near it."""

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)

FLOAT = ElementType(DType.F32)

KEYS = -0.75
"""``a`` of the cubic kernel, as in ONNX."""


@importer("Upsample")
def upsample(call: Call) -> Node:
    """Opset 7 has ``scales`` as attribute, opset 9 as operand."""
    if call.has(1):
        scales = _scale_operand(call, 1)
    else:
        scales = [float(s) for s in call.attributes.get("scales", ())]
    return _resize_node(call, *_from_scales(call, scales), "asymmetric", "floor")


@importer("Resize")
def resize(call: Call) -> Node:
    if call.opset < 11:
        return _resize_node(
            call, *_from_scales(call, _scale_operand(call, 1)), "asymmetric", "floor"
        )
    _refuse_exotic(call)
    if call.has(3) and not decide_equal(call.shape(3), (0,)):
        sizes, scales = _from_sizes(call)
    else:
        sizes, scales = _from_scales(call, _scale_operand(call, 2))
    coordinates = call.text("coordinate_transformation_mode", "half_pixel")
    rounding = call.text("nearest_mode", "round_prefer_floor")
    return _resize_node(call, sizes, scales, coordinates, rounding)


def _refuse_exotic(call: Call) -> None:
    """Raise ``Unsupported`` for attributes that change the result in ways the op does not know."""
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise Unsupported(f"keep_aspect_ratio_policy {policy!r}")


def _check_weights(before: Sequence[Dim], after: Sequence[Dim]) -> None:
    """Raise ``Unsupported`` for images whose antialiasing takes too many weights."""
    if max(likely(a) * likely(b) for a, b in zip(before, after, strict=True)) > MAX_WEIGHTS:
        raise Unsupported(f"antialiasing of an axis with more than {MAX_WEIGHTS} weights")


def _scale_operand(call: Call, position: int) -> list[float]:
    return [float(np.float32(s)) for s in call.array(position, "scales").reshape(-1)]


def _from_scales(call: Call, scales: list[float]) -> tuple[list[Dim], list[float]]:
    """(sizes, scales) of every axis."""
    dims = call.shape(0)
    full = _spread(call, scales, [1.0] * len(dims))
    if not all(math.isfinite(s) and s > 0 for s in full):
        raise ValueError(f"scales {full} must be positive")
    if math.prod(full) * likely(prod(dims)) > MAX_ELEMENTS:
        raise Unsupported(f"scales {full} make more than {MAX_ELEMENTS} elements")
    return [_scale(d, s) for d, s in zip(dims, full, strict=True)], full


def _scale(size: Dim, scale: float) -> Dim:
    """``floor(size * scale)``; a free size stays so where a fraction gives what the rounded product
    gives."""
    if isinstance(size, Size):
        fraction, limit = _exact_fraction(scale)
        if fraction is not None and (limit is None or decide(size < limit)):
            return size * fraction.numerator // fraction.denominator
    # The product is a float32 in ONNX: 10 * 2.3 is 23, not 22.9999995.
    return math.floor(np.float32(float(size)) * np.float32(scale))


@cache
def _exact_fraction(scale: float) -> tuple[Fraction | None, int | None]:
    """A fraction that gives ``floor(size * scale)``, and the size from which on it may not (None:
    always does); no fraction where none is known."""
    fraction = Fraction(scale).limit_denominator(MAX_FACTOR)
    if fraction.numerator > MAX_FACTOR:
        return None, None
    if fraction == Fraction(scale):
        return fraction, None
    sizes = np.arange(LONGEST)
    products = np.floor(sizes.astype(np.float32) * np.float32(scale)).astype(np.int64)
    is_same = (products == sizes * fraction.numerator // fraction.denominator).all()
    return (fraction, LONGEST) if is_same else (None, None)


def _from_sizes(call: Call) -> tuple[list[Dim], list[float]]:
    dims = call.shape(0)
    entries = [integer(s) for s in call.array(3, "sizes").reshape(-1)]
    full = _spread(call, entries, list(dims))
    return full, [_ratio(s, d) for s, d in zip(full, dims, strict=True)]


def _ratio(size: Dim, dim: Dim) -> float:
    """``size / dim``, which no shape changes if a free size is so many times as large."""
    whole = size // dim
    exact = not is_free(whole) and surely_divides(dim, size)
    return float(whole) if exact else float(size) / float(dim)


def _spread(call: Call, entries: list[Entry], default: list[Entry]) -> list[Entry]:
    """Entries for ``axes`` (opset 18), the default elsewhere."""
    rank = len(default)
    axes = normal(call.integers("axes", range(rank)), rank)
    if len(entries) != len(axes):
        raise ValueError(f"{len(entries)} sizes or scales for {len(axes)} axes")
    result = list(default)
    for axis, entry in zip(axes, entries, strict=True):
        result[axis] = entry
    return result


def _resize_node(
    call: Call, sizes: list[Dim], scales: list[float], coordinates: str, rounding: str
) -> Node:
    """The Resize node: spatial axes only.  Scales of 1 copy, also infinities, which products with
    weights of 0 would make NaN.
    """
    if all(scale == 1 for scale in scales):
        return call.node(0)
    mode = call.text("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise Unsupported(f"interpolation mode {mode!r}")
    if coordinates not in COORDINATES:
        raise Unsupported(f"coordinate transformation {coordinates!r}")
    if not decide_equal(sizes[:2], call.shape(0)[:2]):
        raise Unsupported("resizes the batch or channel axis")
    x = to_nhwc(call)
    h, w = ([1] * 2 + sizes[2:])[-2:]
    scale_h, scale_w = ([1.0] * 2 + scales[2:])[-2:]
    chosen: dict[str, Any] = {
        "name": call.result,
        "x": x,
        "sizes": (h, w),
        "scales": (scale_h, scale_w),
        "coordinates": coordinates,
        "rounding": rounding,
    }
    if call.integer("antialias", 0) and mode != "nearest":
        _check_weights(x.type.shape[1:3], (h, w))
        outside = bool(call.integer("exclude_outside", 0))
        return from_nhwc(call, AntialiasedResize(**chosen, excludes_outside=outside))
    return from_nhwc(call, Resize(**chosen, mode="nearest" if mode == "nearest" else "linear"))


@dataclass(frozen=True)
class ResampledAxis:
    """One axis of the image: where in pixels a grid coordinate lies."""

    coordinate: Expr
    size: Dim
    padding: str
    align: bool

    def place(self) -> Expr:
        """In pixels."""
        moved = fn("add", self.coordinate, const(1))
        if self.align:
            return fn("mul", moved, const((float(self.size) - 1) / 2))
        return fn("sub", fn("mul", moved, const(float(self.size) / 2)), const(0.5))

    def pad(self, place: Expr) -> Expr:
        """A place brought into the image unless it is padded with zeros."""
        if self.padding == "zeros":
            return place
        if self.padding == "reflection":
            place = self._reflect(place)
        return fn("fmin", fn("fmax", place, const(0)), const(float(self.size) - 1))

    def _reflect(self, place: Expr) -> Expr:
        """Mirrored at both edges as often as needed."""
        size = float(self.size)
        low, span = (0.0, size - 1) if self.align else (-0.5, size)
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
        return fn("and", fn("ge", place, const(0)), fn("le", place, const(float(self.size) - 1)))


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
    if decide(call.shape(1)[0] != n):
        raise ValueError(f"{n} images for {call.shape(1)[0]} grids")
    args = [*coordinates(call, call.node(1))]
    args.append(iota(call, args[0].type.shape, 0))
    align = bool(call.integer("align_corners", 0))
    across, down = (ResampledAxis(arg(i), size, padding, align) for i, size in ((0, w), (1, h)))
    table = reshape(call, x, (n * h * w, c))
    if padding == "zeros":
        zeros = call.constant("outside", np.zeros((1, c), np.float32))
        table = Concat(name=call.derive("padded"), parts=(table, zeros), axis=0)

    def position(row: Expr, column: Expr) -> Expr:
        """The row of the table that holds a pixel."""
        index = dot([(down.pixel(row), w), (across.pixel(column), 1), (arg(2), h * w)])
        if padding != "zeros":
            return index
        inside = fn("and", down.inside(row), across.inside(column))
        return fn("select", inside, index, lconst(n * h * w))

    samples = [
        (position(row, column), fn("mul", row_share, column_share))
        for row, row_share in CORNERS[mode](down)
        for column, column_share in CORNERS[mode](across)
    ]
    if len(samples) == 1:
        return channels_first(call, _weigh(call, call.result, table, args, *samples[0]))
    total, *parts = (_weigh(call, call.derive("part"), table, args, *s) for s in samples)
    for i, part in enumerate(parts, 1):
        name = call.result if i == len(parts) else call.derive("sum")
        total = Add(name=name, x=total, y=part)
    return channels_first(call, total)


Corners = Callable[[ResampledAxis], list[tuple[Expr, Expr]]]
"""The pixels along an axis that a position takes its value from, and their shares."""


def nearest(axis: ResampledAxis) -> list[tuple[Expr, Expr]]:
    return [(axis.pad(fn("rint", axis.place())), const(1))]


def _part_beyond(place: Expr, before: Expr) -> Expr:
    """The distance from the pixel before; 1 where the place is infinite or NaN."""
    return fn("fmin", fn("sub", place, before), const(1))


def linear(axis: ResampledAxis) -> list[tuple[Expr, Expr]]:
    """Two pixels, each padded by itself."""
    place = axis.place()
    before = fn("floor", place)
    t = _part_beyond(place, before)
    after = fn("add", before, const(1))
    return [(axis.pad(before), fn("sub", const(1), t)), (axis.pad(after), t)]


def cubic(axis: ResampledAxis) -> list[tuple[Expr, Expr]]:
    """Four pixels, each padded by itself: Keys' kernel."""
    place = axis.place()
    before = fn("floor", place)
    t = _part_beyond(place, before)
    back = fn("sub", const(1), t)
    shares = (
        _outer_share(fn("add", t, const(1))),
        _inner_share(t),
        _inner_share(back),
        _outer_share(fn("add", back, const(1))),
    )
    return [
        (axis.pad(fn("add", before, const(offset))), share)
        for offset, share in zip((-1, 0, 1, 2), shares, strict=True)
    ]


def _inner_share(d: Expr) -> Expr:
    """``(a + 2) d^3 - (a + 3) d^2 + 1`` at a distance up to 1"""
    return polynomial(d, 1, 0, -(KEYS + 3), KEYS + 2).rounded()


def _outer_share(d: Expr) -> Expr:
    """``a d^3 - 5 a d^2 + 8 a d - 4 a`` at a distance from 1 to 2"""
    return polynomial(d, -4 * KEYS, 8 * KEYS, -5 * KEYS, KEYS).rounded()


CORNERS: dict[str, Corners] = {
    "nearest": nearest,
    "linear": linear,
    "bilinear": linear,
    "cubic": cubic,
    "bicubic": cubic,
}


def _weigh(call: Call, name: str, table: Node, args: list[Node], pixel: Expr, weight: Expr) -> Node:
    """Pixels [N, H, W, C] times their weights [N, H, W, 1]."""
    rows = Elementwise(name=call.derive("pixel"), args=tuple(args), expression=pixel, out=INT64)
    pixels = Gather(name=call.derive("value"), x=table, indices=rows, axis=0)
    share = Elementwise(
        name=call.derive("weight"), args=tuple(args[:2]), expression=weight, out=FLOAT
    )
    column = reshape(call, share, (*share.type.shape, 1))
    return Mul(name=name, x=pixels, y=column)


@importer("AffineGrid")
def affine_grid(call: Call) -> Node:
    """Every place of the image (x, y, 1) or volume (x, y, z, 1), times the matrix of its sample."""
    theta, size = call.node(0), call.array(1, "size").reshape(-1)
    rank = len(size) - 2
    if not decide_equal(theta.type.shape, (size[0], rank, rank + 1)):
        raise ValueError(f"theta has shape {theta.type.shape}, the size is {size.tolist()}")
    align = bool(call.integer("align_corners", 0))
    call.reserve([int(length) for length in size[2:]], 16 * (rank + 1))
    places = [_places_along(int(length), align) for length in size[2:]]
    columns = np.meshgrid(*places, indexing="ij")[::-1]
    rows = np.stack([*columns, np.ones_like(columns[0])], axis=-1).reshape(1, -1, rank + 1)
    transposed = Transpose(name=call.derive("columns"), x=theta, perm=(0, 2, 1))
    points = MatMul(name=call.derive("rows"), x=call.constant("places", rows), y=transposed)
    return reshape(call, points, (int(size[0]), *map(int, size[2:]), rank))


def _places_along(length: int, align: bool) -> Array:
    """Coordinates from -1 to 1 of the elements of an axis: of their outer edges, or centers.

    A single element aligned with both ends is at 1, as onnxruntime has it; ONNX divides by zero.
    """
    if align:
        return np.arange(length) * (2 / (length - 1)) - 1 if length > 1 else np.ones(1)
    return (2 * np.arange(length) + 1) / length - 1
