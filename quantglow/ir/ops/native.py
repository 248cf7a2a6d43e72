"""Native code for work at which NumPy is slow: the interface, and maps over elements.

NumPy defines the results.  Native code gives the same ones where they are integers or counts, and
float sums up to their rounding: it adds in one order on every processor.  It is used inside of
``computing_with`` only, which calibration enters; the interpreter alone never does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quantglow.ir.ops.expression import Expr
from quantglow.support.arrays import Array

Pair = tuple[int, int]

_NATIVE: ContextVar[NativeOps | None] = ContextVar("quantglow_native", default=None)


@dataclass(frozen=True)
class Ends:
    """The end of a float32 sum: a bias [O] is added, then bounds apply."""

    bias: Array | None
    low: float = -math.inf
    high: float = math.inf

    def apply(self, sums: Array) -> Array:
        """The ended sums, in their place."""
        if self.bias is not None:
            np.add(sums, self.bias, out=sums)
        if (self.low, self.high) == (-math.inf, math.inf):
            return sums
        return np.clip(sums, np.float32(self.low), np.float32(self.high), out=sums)


@dataclass(frozen=True)
class IntegerEnds:
    """The end of an exact sum of an integer layer:
    ``rint((sum + bias) * scale + (residual - residual_zero_point) * ratio) + zero_point``, within
    integers ``low`` and ``high``.  ``sum + bias`` is int32, and wraps around.

    bias int32 [O]; scales float32 [O]; residual: 8-bit integers in the shape of the sums, or None.
    """

    bias: Array
    scales: Array
    zero_point: int
    low: int
    high: int
    residual: Array | None = None
    residual_zero_point: int = 0
    ratio: float = 0.0


class NativeOps(Protocol):
    """Operations on C-contiguous float32 arrays; several threads may call them at once."""

    def conv2d(
        self,
        x: Array,
        w: Array,
        strides: Pair,
        dilations: Pair,
        ends: Ends | None,
        result: Array,
    ) -> None:
        """A convolution of padded NHWC ``x`` with HWIO ``w``, into ``result`` [N, OH, OW, O];
        groups follow from the channels."""

    def padded(self, x: Array, zero_point: int, top: int, left: int, result: Array) -> None:
        """Copy NHWC images, float32 or 8-bit integers less a zero point, into float32 ``result``,
        beginning at line ``top`` and pixel ``left``; the rest of it becomes 0.  Each image of ``x``
        is contiguous."""

    def integers(self, sums: Array, ends: IntegerEnds, result: Array) -> None:
        """The end of sums [..., O] that float32 holds, NaN as ``low``, into an 8-bit ``result``."""

    def no_moments(self, kernel: Pair, channels: int) -> Array:
        """The sums of ``add_moments`` over no data."""

    def add_moments(
        self, sums: Array, x: Array, beside: Array, kernel: Pair, strides: Pair, dilations: Pair
    ) -> None:
        """Add to ``sums`` the products, channel by channel, of any two of these in each pixel: the
        taps of the windows of padded NHWC ``x``, ``beside`` [N, OH, OW, C], and 1.  Exact for
        integers below 256 in magnitude."""

    def missing_sums(self, targets: Array, sums: Array, low: float, high: float) -> None:
        """``targets - sums`` in the place of ``sums``, of one shape; 0 where both are at or beyond
        the same bound."""

    def select_products(self, sums: Array, kernel: Pair, channels: int) -> Array:
        """The sums as float64 [C, taps + 2, taps + 2]."""

    def mapped(self, function: Expr, x: Array, result: Array) -> None:
        """A function of ``$0`` in exact steps for every element; arrays of one shape."""

    def quotients(self, x: Array, divisors: Array, high: float, result: Array) -> None:
        """``minimum(x / divisors, high)`` of ``x`` [rows, columns] by columns."""

    def rounded_reals(self, x: Array, scale: float, low: float, high: float, result: Array) -> None:
        """``clip(rint(x / scale), low, high) * scale``, NaN as ``low``; arrays of one shape."""

    def rounding_errors(self, x: Array, grids: Array) -> tuple[Array, Array]:
        """Errors [grids, *shape] of ``rounded_reals`` with each of the float32 ``grids`` [grids,
        (scale, low, high)], each of which contains 0, and their sums of squares, float64."""

    def energies(self, x: Array) -> tuple[Array, Array]:
        """Sums over each [rows, columns] of ``x`` [items, rows, columns], in float64: of squares,
        and over columns of the squared sum of rows."""

    def extremes(self, x: Array) -> tuple[float, float]:
        """The smallest and the largest of some numbers; NaN for both if one is not finite."""

    def reaches(self, x: Array) -> Array:
        """The largest magnitude in each column of ``x`` [rows, columns]; NaN where one is NaN."""

    def count(self, x: Array, per_bin: float, start: int, counts: Array) -> int:
        """Add the finite values to int64 ``counts`` of bins: ``floor(x * per_bin) - start``, a
        power of two times a number, is the index.  Returns the number of zeros."""


def native_ops() -> NativeOps | None:
    """The native code in use here; None: NumPy."""
    return _NATIVE.get()


@contextmanager
def computing_with(ops: NativeOps | None) -> Iterator[None]:
    """Inside, operators use this code; None: NumPy."""
    token = _NATIVE.set(ops)
    try:
        yield
    finally:
        _NATIVE.reset(token)


def map_array(function: Expr, x: Array) -> Array:
    """A function of ``$0`` for every element of a float32 array, in exact steps; by native code
    where it is in use.  Both give equal numbers; a zero may have the other sign.
    """
    native = native_ops()
    if native is None or x.dtype != np.float32 or not x.size:
        return np.asarray(function.evaluate([x]), np.float32)
    result = np.empty(x.shape, np.float32)
    native.mapped(function, np.ascontiguousarray(x), result)
    return result
