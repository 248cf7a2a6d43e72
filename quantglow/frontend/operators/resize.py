"""Importers of Resize and Upsample, which changed their defaults three times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import numpy as np

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.layout import from_nhwc, to_nhwc
from quantglow.frontend.operators.shape import MAX_ELEMENTS, normal
from quantglow.graph.node import Node
from quantglow.ops.resize import MAX_WEIGHTS, AntialiasedResize, Resize
from quantglow.symbolic.shapes import integer
from quantglow.symbolic.size import is_free, likely, surely_divides

Number = TypeVar("Number", int, float)

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


@importer("Upsample")
def upsample(call: Call) -> Node:
    """Opset 7 has ``scales`` as attribute, opset 9 as operand."""
    if call.has(1):
        scales = scale_operand(call, 1)
    else:
        scales = [float(s) for s in call.attributes.get("scales", ())]
    return resized(call, *from_scales(call, scales), "asymmetric", "floor")


@importer("Resize")
def resize(call: Call) -> Node:
    if call.opset < 11:
        return resized(call, *from_scales(call, scale_operand(call, 1)), "asymmetric", "floor")
    refuse_exotic(call)
    if call.has(3) and call.shape(3) != (0,):
        sizes, scales = from_sizes(call)
    else:
        sizes, scales = from_scales(call, scale_operand(call, 2))
    coordinates = call.text("coordinate_transformation_mode", "half_pixel")
    rounding = call.text("nearest_mode", "round_prefer_floor")
    return resized(call, sizes, scales, coordinates, rounding)


def refuse_exotic(call: Call) -> None:
    """Raise ``Unsupported`` for attributes that change the result in ways the op does not know."""
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise Unsupported(f"keep_aspect_ratio_policy {policy!r}")


def check_weights(before: Sequence[int], after: Sequence[int]) -> None:
    """Raise ``Unsupported`` for images whose antialiasing takes too many weights."""
    if max(likely(a) * likely(b) for a, b in zip(before, after, strict=True)) > MAX_WEIGHTS:
        raise Unsupported(f"antialiasing of an axis with more than {MAX_WEIGHTS} weights")


def scale_operand(call: Call, position: int) -> list[float]:
    return [float(np.float32(s)) for s in call.array(position, "scales").reshape(-1)]


def from_scales(call: Call, scales: list[float]) -> tuple[list[int], list[float]]:
    """(sizes, scales) of every axis."""
    dims = call.shape(0)
    full = spread(call, scales, [1.0] * len(dims))
    if not all(math.isfinite(s) and s > 0 for s in full):
        raise ValueError(f"scales {full} must be positive")
    if math.prod(full) * likely(math.prod(dims)) > MAX_ELEMENTS:
        raise Unsupported(f"scales {full} make more than {MAX_ELEMENTS} elements")
    return [scaled(d, s) for d, s in zip(dims, full, strict=True)], full


def scaled(size: int, scale: float) -> int:
    """``floor(size * scale)``; a free size stays so where a fraction gives what the rounded product
    gives."""
    if is_free(size):
        fraction, limit = fraction_of(scale)
        if fraction is not None and (limit is None or size < limit):
            return size * fraction.numerator // fraction.denominator
    # The product is a float32 in ONNX: 10 * 2.3 is 23, not 22.9999995.
    return math.floor(np.float32(size) * np.float32(scale))


@cache
def fraction_of(scale: float) -> tuple[Fraction | None, int | None]:
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


def from_sizes(call: Call) -> tuple[list[int], list[float]]:
    dims = call.shape(0)
    given = [integer(s) for s in call.array(3, "sizes").reshape(-1)]
    full = spread(call, given, list(dims))
    return full, [ratio(s, d) for s, d in zip(full, dims, strict=True)]


def ratio(size: int, dim: int) -> float:
    """``size / dim``, which no shape changes if a free size is so many times as large."""
    whole = size // dim
    exact = not is_free(whole) and surely_divides(dim, size)
    return float(whole) if exact else size / dim


def spread(call: Call, given: list[Number], default: list[Number]) -> list[Number]:
    """Entries for ``axes`` (opset 18), the default elsewhere."""
    rank = len(default)
    axes = normal(call.integers("axes", range(rank)), rank)
    if len(given) != len(axes):
        raise ValueError(f"{len(given)} sizes or scales for {len(axes)} axes")
    result = list(default)
    for axis, entry in zip(axes, given, strict=True):
        result[axis] = entry
    return result


def resized(
    call: Call, sizes: list[int], scales: list[float], coordinates: str, rounding: str
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
    if tuple(sizes[:2]) != call.shape(0)[:2]:
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
        check_weights(x.type.shape[1:3], (h, w))
        outside = bool(call.integer("exclude_outside", 0))
        return from_nhwc(call, AntialiasedResize(**chosen, excludes_outside=outside))
    return from_nhwc(call, Resize(**chosen, mode="nearest" if mode == "nearest" else "linear"))
