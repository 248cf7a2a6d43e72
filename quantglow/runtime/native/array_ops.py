"""Array kernels called on NumPy arrays: the ``NativeOps`` of calibration."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np

from quantglow.codegen.llvm.array_kernels.convolution import (
    VECTORS,
    dense,
    depthwise,
    pad_images,
    tile_pixels,
)
from quantglow.codegen.llvm.array_kernels.elements import (
    FLOAT_NBYTES,
    energies,
    integers,
    integers_with_residual,
    map_function,
    missing_sums,
    quotients,
    rounded_reals,
    rounding_errors,
)
from quantglow.codegen.llvm.array_kernels.statistics import (
    PART,
    SIDE,
    TABLES,
    counts,
    depthwise_moments,
    extremes,
    reaches,
)
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.native import Ends, IntegerEnds, Pair
from quantglow.ir.types import DType
from quantglow.runtime.jit.library import addresses
from quantglow.runtime.native.buffers import aligned_address
from quantglow.support.arrays import Array

SIGN = 0x80
"""The sign bit of a byte."""

INFINITY_BITS = 0x7F800000
"""The bits of infinity; those of finite numbers are less."""

Kernel = Callable[[object, int, int], None]
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

POINTERS = [ctypes.c_void_p * count for count in range(10)]
"""Arrays of so many pointers."""

KERNELS: dict[str, Callable[[Target], str]] = {
    "dense": dense,
    "depthwise": depthwise,
    **{
        f"padded {kind}": partial(pad_images, dtype=kind)
        for kind in (DType.F32, DType.I8, DType.U8)
    },
    "integers": integers,
    "integers_with_residual": integers_with_residual,
    "rounded_reals": rounded_reals,
    "rounding_errors": rounding_errors,
    "energies": energies,
    "extremes": extremes,
    "counts": counts,
    "reaches": reaches,
    "depthwise_moments": depthwise_moments,
    "missing_sums": missing_sums,
    "quotients": quotients,
}
"""The text of each kernel for a target."""

FUNCTIONS_KEPT = 64
"""Number of kernels of functions that are kept: a network has a few kinds of functions."""

TABLES_KEPT = 64
"""Number of tables of offsets that are kept: a network has some twenty shapes of parts of images,
of up to a hundred kilobytes."""


@dataclass(frozen=True)
class ArrayKernels:
    """The kernels of a target, loaded."""

    target: Target
    kernels: dict[str, Kernel]

    def conv2d(
        self, x: Array, w: Array, strides: Pair, dilations: Pair, ends: Ends | None, result: Array
    ) -> None:
        """``NativeOps.conv2d``"""
        channels, (kh, kw, inputs, outputs) = x.shape[3], w.shape
        groups = channels // inputs
        offsets, taps = window_offsets(x.shape, (kh, kw), strides, dilations, result.shape[1:3])
        ends = ends or Ends(None)
        biases = np.zeros(outputs, np.float32) if ends.bias is None else ends.bias
        bias = np.ascontiguousarray(biases, np.float32)
        bounds = np.array([ends.low, ends.high], np.float32)
        is_depthwise = inputs == 1 and outputs == groups
        group_outputs = outputs if is_depthwise else outputs // groups
        pitch = FLOAT_NBYTES * outputs
        sizes = np.array([kh * kw, inputs, pitch, pitch, group_outputs, len(offsets)], np.int64)
        lanes = self.target.f32_lanes
        if is_depthwise:
            arrays = (x, w, bias, bounds, result, offsets, taps, sizes)
            self._run("depthwise", arrays, -(-len(offsets) // tile_pixels(self.target)))
            return
        width = VECTORS * lanes
        panel = np.empty(kh * kw * inputs * width, np.float32)
        for group in range(groups):
            some = slice(group * group_outputs, (group + 1) * group_outputs)
            read = x[..., group * inputs : (group + 1) * inputs]
            parts = (read, w[..., some], bias[some], bounds, result[..., some])
            self._run("dense", (*parts, offsets, taps, sizes, panel), -(-group_outputs // width))

    def padded(self, x: Array, zero_point: int, top: int, left: int, result: Array) -> None:
        """``NativeOps.padded``"""
        (height, width, channels), (lines, pixels) = x.shape[1:], result.shape[1:3]
        numbers = (left * channels, width * channels, pixels * channels)
        sizes = np.array([lines, height, top, *numbers, x.strides[0]], np.int64)
        arrays = (x, result, sizes, np.array([zero_point], np.float32))
        self._run(f"padded {DType.of(x).value}", arrays, len(x) * lines)

    def integers(self, sums: Array, ends: IntegerEnds, result: Array) -> None:
        """``NativeOps.integers``"""
        zero_point, channels = ends.zero_point, sums.shape[-1]
        bias = np.ascontiguousarray(ends.bias, np.int32)
        scales = np.ascontiguousarray(ends.scales, np.float32)
        bounds = (ends.low - zero_point, ends.high - zero_point, zero_point)
        sizes, rows = np.array([channels], np.int64), sums.size // max(channels, 1)
        arrays = (sums, bias, scales, np.array(bounds, np.float32), result, sizes)
        if ends.residual is None:
            self._run("integers", arrays, rows)
            return
        residual = np.ascontiguousarray(ends.residual)
        # Bytes are read as unsigned ones: a signed one with its sign bit turned is 128 more.
        flip = SIGN if residual.dtype == np.int8 else 0
        turn = np.array([flip], np.uint8)
        added = np.array([flip + ends.residual_zero_point, ends.ratio], np.float32)
        self._run("integers_with_residual", (*arrays, residual, turn, added), rows)

    def mapped(self, function: Expr, x: Array, result: Array) -> None:
        """``NativeOps.mapped``"""
        kernel_function, numbers = function.with_numbers_apart
        run(
            function_kernel(self.target, kernel_function),
            (x, result, np.array(numbers, np.float32)),
            x.size,
        )

    def quotients(self, x: Array, divisors: Array, high: float, result: Array) -> None:
        """``NativeOps.quotients``"""
        bound, columns = np.array([high], np.float32), np.array([x.shape[1]], np.int64)
        self._run("quotients", (x, divisors, result, bound, columns), len(x))

    def rounded_reals(self, x: Array, scale: float, low: float, high: float, result: Array) -> None:
        """``NativeOps.rounded_reals``"""
        grid = np.array([scale, low, high], np.float32)
        self._run("rounded_reals", (x, result, grid), x.size)

    def rounding_errors(self, x: Array, grids: Array) -> tuple[Array, Array]:
        """``NativeOps.rounding_errors``"""
        errors = np.empty((len(grids), *x.shape), np.float32)
        squares = np.zeros((len(grids), self.target.f32_lanes))
        size = np.array([x.size], np.int64)
        self._run("rounding_errors", (x, errors, grids, squares, size), len(grids))
        return errors, squares.sum(axis=1)

    def energies(self, x: Array) -> tuple[Array, Array]:
        """``NativeOps.energies``"""
        items, rows, columns = x.shape
        energies = np.zeros((items, 2, self.target.f32_lanes))
        self._run("energies", (x, np.array([rows, columns], np.int64), energies), items)
        squares, sums = energies.sum(axis=2).T
        return squares, sums

    def extremes(self, x: Array) -> tuple[float, float]:
        """``NativeOps.extremes``"""
        lanes = self.target.f32_lanes
        whole = x.size // lanes
        low, high = math.inf, -math.inf
        if whole:
            extremes = np.empty((3, lanes), np.float32)
            self._run("extremes", (x, extremes), whole)
            if extremes[2].view(np.int32).max() >= INFINITY_BITS:
                return math.nan, math.nan
            low, high = float(extremes[0].min()), float(extremes[1].max())
        remainder = x[whole * lanes :]
        if not remainder.size:
            return low, high
        if not np.isfinite(remainder).all():
            return math.nan, math.nan
        return min(low, float(remainder.min())), max(high, float(remainder.max()))

    def reaches(self, x: Array) -> Array:
        """``NativeOps.reaches``"""
        reaches, columns = np.zeros(x.shape[1], np.float32), np.array([x.shape[1]], np.int64)
        self._run("reaches", (x, reaches, columns), len(x))
        return reaches

    def count(self, x: Array, per_bin: float, start: int, counts: Array) -> int:
        """``NativeOps.count``"""
        lanes = self.target.f32_lanes
        whole = x.size // lanes
        tables = np.zeros((TABLES, len(counts)), np.int32)
        zeros = np.zeros(lanes, np.int32)
        scaling = np.array([per_bin, start, len(counts) - 1], np.float32)
        sizes = np.array([len(counts)], np.int64)
        self._run("counts", (x, tables, scaling, sizes, zeros), whole)
        remainder = x[whole * lanes :]
        index = np.floor(remainder * np.float32(per_bin)) - np.float32(start)
        counts += tables.sum(axis=0, dtype=np.int64)
        counts += np.bincount(index.astype(np.int32), minlength=len(counts))
        return int(zeros.sum(dtype=np.int64)) + int(np.count_nonzero(remainder == 0))

    def _run(self, name: str, arrays: tuple[Array, ...], items: int) -> None:
        """Run a kernel on all its items."""
        run(self.kernels[name], arrays, items)

    def no_moments(self, kernel: Pair, channels: int) -> Array:
        """``NativeOps.no_moments``"""
        lanes, side = self.target.f32_lanes, SIDE
        terms = -(-(kernel[0] * kernel[1] + 2) // side) * side
        return np.zeros((terms, terms, -(-channels // lanes) * lanes))

    def add_moments(
        self, sums: Array, x: Array, beside: Array, kernel: Pair, strides: Pair, dilations: Pair
    ) -> None:
        """``NativeOps.add_moments``"""
        lanes, (terms, _, width) = self.target.f32_lanes, sums.shape
        offsets, taps = window_offsets(x.shape, kernel, strides, dilations, beside.shape[1:3])
        sizes = np.array([len(taps), terms, x.shape[3], width, len(offsets)], np.int64)
        room = np.zeros((PART, terms, lanes), np.float32)
        arrays = (x, beside, offsets, taps, sizes, room, sums)
        self._run("depthwise_moments", arrays, width // lanes)

    def missing_sums(self, values: Array, sums: Array, low: float, high: float) -> None:
        """``NativeOps.missing_sums``"""
        assert values.shape == sums.shape and sums.flags.c_contiguous
        bounds = np.array([low, high], np.float32)
        self._run("missing_sums", (values, sums, bounds), sums.size)

    def select_products(self, sums: Array, kernel: Pair, channels: int) -> Array:
        """``NativeOps.select_products``"""
        count = kernel[0] * kernel[1] + 2
        products = sums[:count, :count, :channels].transpose(2, 0, 1)
        # Blocks below the diagonal were left out.
        return np.asarray(np.triu(products) + np.triu(products, 1).transpose(0, 2, 1))


@cache
def array_kernels(level: str = "native") -> ArrayKernels:
    """The kernels for a target that runs here, compiled or taken from the cache of kernels."""
    target = resolve(level)
    kernels = load(target, [text(target) for text in KERNELS.values()])
    return ArrayKernels(target, dict(zip(KERNELS, kernels, strict=True)))


def load(target: Target, texts: Sequence[str]) -> list[Kernel]:
    """Kernels, compiled or taken from the cache."""
    return [SIGNATURE(address) for address in addresses(target, texts)]


@lru_cache(FUNCTIONS_KEPT)
def function_kernel(target: Target, function: Expr) -> Kernel:
    """The kernel of a function of ``$0`` and numbers."""
    return load(target, [map_function(target, function)])[0]


def run(kernel: Kernel, arrays: tuple[Array, ...], items: int) -> None:
    """Run a kernel on all its items; the arrays are held until it ends."""
    kernel(POINTERS[len(arrays)](*[aligned_address(array) for array in arrays]), 0, items)


@lru_cache(TABLES_KEPT)
def window_offsets(
    shape: tuple[int, ...], kernel: Pair, strides: Pair, dilations: Pair, size: tuple[int, ...]
) -> tuple[Array, Array]:
    """Offsets in bytes of the windows in images of a shape [N, H, W, C], and of taps in them."""
    n, h, w, c = shape
    image, line, pixel = (np.arange(count, dtype=np.int64) for count in (n, *size))
    rows = (image[:, None] * h + line * strides[0])[:, :, None] * w
    offsets = (rows + pixel * strides[1]) * (FLOAT_NBYTES * c)
    i, j = (np.arange(k, dtype=np.int64) * d for k, d in zip(kernel, dilations, strict=True))
    return offsets.reshape(-1), ((i[:, None] * w + j) * (FLOAT_NBYTES * c)).reshape(-1)
