"""Resize of NHWC images, as ONNX defines it, reduced to taps: every result row (column) is a
weighted sum of two source rows (columns)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import REALS, Trait, element_kind
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.arithmetic import center, is_integer, saturate
from quantglow.ir.ops.shape import MOVES
from quantglow.ir.symbolic.size import Dim, Shape, decide, fixed, is_free, likely
from quantglow.ir.types import TensorType
from quantglow.support.arrays import Array

MAX_WEIGHTS = 2**26
"""Maximum number of weights of an antialiased axis: its pixels times its results."""


@dataclass(frozen=True)
class Interpolation:
    """For each result index: two source indices and the float32 weight of the second."""

    first: Array
    second: Array
    weight: Array


far_coordinates = np.errstate(over="ignore", invalid="ignore")
"""Tiny scales, which files may have, give coordinates that are infinite or NaN."""


def limit(coordinates: Array, length: int) -> Array:
    """Coordinates moved into ``length`` rows; NaN becomes 0."""
    return np.fmin(np.fmax(coordinates, 0), length - 1)


def tap_index(coordinates: Array, length: int) -> Array:
    """int32 rows of coordinates, rounded down and moved into ``length`` rows.

    The integers are limited again: float32 rounds the number of the last row up if it is large.
    """
    whole = np.floor(limit(coordinates, length)).astype(np.int64)
    return np.clip(whole, 0, length - 1).astype(np.int32)


@op
class Resize(Node):
    """x [N, H, W, C] to [N, *sizes, C] by nearest or (bi)linear interpolation.

    ``scales`` are the ONNX scales (they differ from sizes ratios when rounding matters).
    Quantization parameters pass through; linear interpolation of integers rounds once.
    """

    x: Node
    sizes: tuple[Dim, Dim]
    scales: tuple[float, float]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"

    traits = MOVES

    def has(self, trait: Trait) -> bool:
        """``MOVES`` and ``CHOOSES`` hold for nearest only: interpolation makes new numbers."""
        if trait in (Trait.MOVES, Trait.CHOOSES):
            return self.mode == "nearest"
        return super().has(trait)

    def for_samples(self, shape: Shape) -> dict[str, Any]:
        return {}

    @property
    def table_entries(self) -> int:
        """The taps of rows and of columns."""
        return sum(map(likely, self.sizes))

    def infer(self) -> TensorType:
        if self.x.type.rank != 4:
            raise self.refuse("x must have 4 dimensions")
        if self.mode not in ("nearest", "linear"):
            raise self.refuse(f"mode {self.mode!r} is neither nearest nor linear")
        if self.mode == "linear" and not element_kind(self.x.type) & REALS:
            raise self.refuse("only floats and codes with one scale are interpolated")
        if self.coordinates not in COORDINATES:
            raise self.refuse(f"unknown coordinate transformation {self.coordinates!r}")
        if self.rounding not in ROUNDINGS:
            raise self.refuse(f"unknown rounding {self.rounding!r}")
        if any(decide(size < 1) for size in (*self.x.type.shape[1:3], *self.sizes)):
            raise self.refuse(f"images of {self.x.type.shape[1:3]} cannot become {self.sizes}")
        if not all(math.isfinite(scale) and np.float32(scale) > 0 for scale in self.scales):
            raise self.refuse(f"scales {self.scales} must be finite and positive")
        n, _, _, c = self.x.type.shape
        return self.x.type.with_shape((n, *self.sizes, c))

    @far_coordinates
    def taps(self, axis: int) -> Interpolation:
        """The taps along H (axis 0) or W (axis 1)."""
        length, resized = int(self.x.type.shape[axis + 1]), int(self.sizes[axis])
        if self.mode == "nearest":
            nearest = self.nearest(axis, length, resized)
            return Interpolation(nearest, nearest, np.zeros(resized, np.float32))
        source = limit(self._sources(axis, length, resized), length)
        first = tap_index(source, length)
        second = np.minimum(first + 1, length - 1).astype(np.int32)
        # Halves of the same row, as in onnxruntime: a weight of 0 makes NaN of infinities.
        weight = np.where(first == second, np.float32(0.5), (source - first).astype(np.float32))
        return Interpolation(first, second, weight)

    @far_coordinates
    def nearest(self, axis: int, length: int, resized: int) -> Array:
        """The nearest of ``length`` rows (columns) to each of ``resized``."""
        source = ROUNDINGS[self.rounding](self._sources(axis, length, resized))
        return tap_index(source, length)

    def _sources(self, axis: int, length: int, resized: int) -> Array:
        """The coordinate in the source of each result."""
        # float32 as in onnxruntime: one ulp decides which row is the nearest.
        index = np.arange(resized, dtype=np.float32)
        scale = float(np.float32(self.scales[axis]))
        return COORDINATES[self.coordinates](index, length, resized, scale)

    def reference(self, x: Array) -> Array:
        rows, columns = self.taps(0), self.taps(1)
        if self.mode == "nearest":
            return x[:, rows.first][:, :, columns.first]
        values = center(x, self.x.type).astype(np.float32) if is_integer(self.x.type) else x
        v, u = rows.weight[:, None, None], columns.weight[:, None]
        upper, lower = values[:, rows.first], values[:, rows.second]
        one = np.float32(1)
        top = upper[:, :, columns.first] * (one - u) + upper[:, :, columns.second] * u
        bottom = lower[:, :, columns.first] * (one - u) + lower[:, :, columns.second] * u
        result = top * (one - v) + bottom * v
        if not is_integer(self.x.type):
            return np.asarray(result, np.float32)
        return saturate(result, self.type.element, *self.type.dtype.limits)


@op
class AntialiasedResize(Resize):
    """x [N, H, W, C] to [N, *sizes, C], each result a weighted sum of all pixels below a triangle.

    Where an image shrinks, the triangle is as wide as two results.  ``excludes_outside``: pixels
    beyond the edge have no weight, as in Pillow; else those on the edge stand for them.  Floats.
    """

    mode: str = "linear"
    excludes_outside: bool = True

    def infer(self) -> TensorType:
        if self.mode != "linear" or not self.x.type.dtype.is_float:
            raise self.refuse("only linear interpolation of floats is antialiased")
        result = super().infer()
        for axis, sizes in enumerate(zip(self.x.type.shape[1:3], self.sizes, strict=True)):
            if not any(map(is_free, sizes)):
                self._check_axis(axis, *fixed(sizes))
        return result

    def _check_axis(self, axis: int, length: int, size: int) -> None:
        """Raise ``TypeRuleError`` for known sizes that the scale does not give, or large tables."""
        scale = self.scales[axis]
        if abs(size - length * scale) > 1:
            raise self.refuse(f"{length} pixels times {scale} are not {size}")
        if size * max(length, 2 / scale) > MAX_WEIGHTS:
            raise self.refuse(
                f"{length} pixels to {size} by {scale} take more than {MAX_WEIGHTS} weights"
            )

    def weights(self, axis: int) -> Array:
        """float32 [results, pixels] of H (axis 0) or W (axis 1); the sum of each row is 1.

        Raises ``TypeRuleError`` for sizes that were free before and do not fit the scale.
        """
        length, resized = int(self.x.type.shape[axis + 1]), int(self.sizes[axis])
        self._check_axis(axis, length, resized)
        index, scale = np.arange(resized, dtype=np.float64), float(self.scales[axis])
        centers = COORDINATES[self.coordinates](index, length, resized, scale)[:, None]
        narrow = min(scale, 1.0)
        reach = math.ceil(1 / narrow) + 1
        pixels = np.floor(centers).astype(np.int64) + np.arange(-reach, reach + 1)
        coefficients = np.maximum(1 - np.abs(pixels - centers) * narrow, 0)
        if self.excludes_outside:
            coefficients[(pixels < 0) | (pixels >= length)] = 0
        matrix = np.zeros((resized, length))
        at = np.clip(pixels, 0, length - 1)
        np.add.at(
            matrix,
            (np.arange(resized)[:, None], at),
            coefficients / coefficients.sum(1, keepdims=True),
        )
        return matrix.astype(np.float32)

    def reference(self, x: Array) -> Array:
        rows, columns = self.weights(0), self.weights(1)
        n, h, w, c = x.shape
        narrowed = np.matmul(rows, x.reshape(n, h, w * c)).reshape(n, len(rows), w, c)
        return np.asarray(np.matmul(columns, narrowed), np.float32)


def _half_pixel(i: Array, length: int, resized: int, scale: float) -> Array:
    return (i + 0.5) / scale - 0.5


def _pytorch_half_pixel(i: Array, length: int, resized: int, scale: float) -> Array:
    return _half_pixel(i, length, resized, scale) if resized > 1 else np.zeros_like(i)


def _align_corners(i: Array, length: int, resized: int, scale: float) -> Array:
    return i * (length - 1) / (resized - 1) if resized > 1 else np.zeros_like(i)


def _asymmetric(i: Array, length: int, resized: int, scale: float) -> Array:
    return i / scale


def _half_pixel_symmetric(i: Array, length: int, resized: int, scale: float) -> Array:
    adjustment = resized / (scale * length)
    offset = length / 2 * (1 - adjustment)
    return offset + (i + 0.5) / scale - 0.5


COORDINATES = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "half_pixel_symmetric": _half_pixel_symmetric,
}

TIE = 1e-6
"""Distance from the middle of two rows up to which a coordinate lies there, as in onnxruntime since
1.32: those of ratios are rounded."""


def _prefer_floor(v: Array) -> Array:
    return np.where(_is_tie(v), np.floor(v), np.ceil(v - 0.5))


def _prefer_ceil(v: Array) -> Array:
    return np.where(_is_tie(v), np.ceil(v), np.floor(v + 0.5))


def _is_tie(v: Array) -> Array:
    return np.asarray(np.abs(v - np.floor(v) - 0.5) <= TIE)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": _prefer_floor,
    "round_prefer_ceil": _prefer_ceil,
    "floor": np.floor,
    "ceil": np.ceil,
    "": _prefer_floor,
}
