"""Tables of a pooling kernel made at compile time: taps, windows inside the image, divisors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.ops import AveragePool, MaxPool

MAX_TAPS = 49
"""Larger windows are not unrolled: every position is treated as a border."""


@dataclass(frozen=True)
class PoolTables:
    """Tables of a pool whose source rows and columns lie ``pitches`` bytes apart, for kernels with
    indices of type ``index``."""

    pool: MaxPool | AveragePool
    pitches: tuple[int, int]
    index: str

    @property
    def outside(self) -> int:
        """The table entry of a tap outside the image, which is no offset."""
        return -(1 << (int(self.index[1:]) - 2))

    def taps(self, axis: int) -> Array:
        """int64 [outputs, kernel]: source index of every tap along H (0) or W (1)."""
        outputs, kernel = self.pool.type.shape[axis + 1], self.pool.kernel[axis]
        first = np.arange(outputs) * self.pool.strides[axis] - self.pool.pads[axis]
        return np.asarray(first[:, None] + np.arange(kernel) * self.pool.dilations[axis])

    def inside(self, axis: int) -> Array:
        taps = self.taps(axis)
        return np.asarray((taps >= 0) & (taps < self.pool.x.type.shape[axis + 1]))

    def interior(self, axis: int) -> tuple[int, int]:
        """The outputs whose taps all lie inside; empty for large windows."""
        whole = np.flatnonzero(self.inside(axis).all(axis=1))
        if not len(whole) or self.pool.kernel[0] * self.pool.kernel[1] > MAX_TAPS:
            return 0, 0
        return int(whole[0]), int(whole[-1]) + 1

    def constants(self) -> list[Array]:
        """Tap offsets of rows and columns, a row of padding, and divisors by position."""
        offsets = [
            np.where(self.inside(axis), self.taps(axis) * self.pitches[axis], self.outside)
            for axis in (0, 1)
        ]
        tables = [np.ascontiguousarray(o, np.int64) for o in offsets]
        return [*tables, self.padding_row(), *self.divisors()]

    def padding_row(self) -> Array:
        """A pixel of padding."""
        return np.full(self.pool.type.shape[3], self.padding, self.pool.x.type.dtype.numpy)

    @property
    def padding(self) -> float | int:
        if isinstance(self.pool, AveragePool):
            return 0
        return self.pool.x.type.dtype.ends[0]

    def divisors(self) -> list[Array]:
        """For averages [OH, OW]: float divisors, or multipliers and sums of zero points."""
        if not isinstance(self.pool, AveragePool):
            return []
        if self.pool.out is None:
            return [np.ascontiguousarray(self.pool.divisors()[..., 0], np.float32)]
        scale = np.ascontiguousarray(self.pool.output_scale()[..., 0], np.float32)
        counts = np.outer(self.inside(0).sum(axis=1), self.inside(1).sum(axis=1))
        zero_point = self.pool.x.type.params.zero_point
        return [scale, np.ascontiguousarray(counts * zero_point, np.int32)]
