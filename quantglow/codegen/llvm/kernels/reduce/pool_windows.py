"""Windows of a pooling kernel at the border of images: by tables, or computed for free sizes.

The tables are made at compile time: taps, windows inside the image, divisors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.kernels.vector.math_functions import literal
from quantglow.codegen.llvm.values import DOUBLE, FLOAT, I32, Type, Value
from quantglow.ir.ops import AveragePool, MaxPool
from quantglow.ir.symbolic.size import Dim, is_free, maximum, minimum
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

MAX_TAPS = 49
"""Larger windows are not unrolled: every position is treated as a border."""

Position = tuple[Value, ...]
"""A window, as its divisor is found: its number, or its row and column."""


@dataclass(frozen=True)
class PoolTables:
    """Tables of a pool whose source rows and columns lie ``pitches`` bytes apart, for kernels with
    indices of type ``index``."""

    pool: MaxPool | AveragePool
    pitches: tuple[Dim, Dim]
    index: Type

    @property
    def outside(self) -> int:
        """The table entry of a tap outside the image, which is no offset."""
        return -(1 << (int(self.index[1:]) - 2))

    def taps(self, axis: int) -> Array:
        """int64 [outputs, kernel]: source index of every tap along H (0) or W (1)."""
        outputs, kernel = int(self.pool.type.shape[axis + 1]), self.pool.kernel[axis]
        first = np.arange(outputs) * self.pool.strides[axis] - int(self.pool.pads[axis])
        return np.asarray(first[:, None] + np.arange(kernel) * self.pool.dilations[axis])

    def inside(self, axis: int) -> Array:
        taps = self.taps(axis)
        return np.asarray((taps >= 0) & (taps < int(self.pool.x.type.shape[axis + 1])))

    def interior(self, axis: int) -> tuple[int, int]:
        """The outputs whose taps all lie inside; empty for large windows."""
        whole = np.flatnonzero(self.inside(axis).all(axis=1))
        if not len(whole) or self.pool.kernel[0] * self.pool.kernel[1] > MAX_TAPS:
            return 0, 0
        return int(whole[0]), int(whole[-1]) + 1

    def constants(self) -> list[Array]:
        """Tap offsets of rows and columns, a row of padding, and divisors by position."""
        offsets = [
            np.where(self.inside(axis), self.taps(axis) * int(self.pitches[axis]), self.outside)
            for axis in (0, 1)
        ]
        tables = [np.ascontiguousarray(o, np.int64) for o in offsets]
        return [*tables, self.padding_row(), *self.divisors()]

    def padding_row(self) -> Array:
        """A pixel of padding."""
        channels = int(self.pool.type.shape[3])
        return np.full(channels, self.padding, self.pool.x.type.dtype.numpy)

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


@dataclass
class PoolWindows(ABC):
    """Taps and divisors of windows, as values of a kernel."""

    b: Builder
    tables: PoolTables
    pointers: Sequence[Value] = field(default=(), init=False)

    @staticmethod
    def of(b: Builder, tables: PoolTables) -> PoolWindows:
        """By tables if these are the same for all images."""
        sizes = (*tables.pool.x.type.shape[1:3], *tables.pitches)
        return (FreeWindows if any(map(is_free, sizes)) else TabledWindows)(b, tables)

    @cached_property
    @abstractmethod
    def constants(self) -> list[Array]:
        """Arrays that the kernel reads, to which ``pointers`` lead."""

    @property
    @abstractmethod
    def padding(self) -> Value:
        """Pointer to a row of taps outside."""

    @abstractmethod
    def interior(self, axis: int) -> tuple[Dim, Dim]:
        """The windows along H (0) or W (1) whose taps all lie inside; empty for large windows."""

    @abstractmethod
    def first(self, axis: int, index: Value) -> Value:
        """The taps of a window along an axis."""

    @abstractmethod
    def tap(self, axis: int, first: Value, number: Value) -> Value:
        """One of them."""

    @abstractmethod
    def is_inside(self, axis: int, tap: Value) -> Value:
        """Whether the image has the tap, an i1."""

    @abstractmethod
    def offset(self, axis: int, tap: Value) -> Value:
        """Bytes from the beginning of the image."""

    @abstractmethod
    def position(self, row: Value, column: Value) -> Position:
        """The position of a window."""

    @abstractmethod
    def scale(self, position: Position) -> Value:
        """The float32 divisor or multiplier of a window."""

    @abstractmethod
    def correction(self, position: Position) -> Value:
        """The int32 sum of zero points of a window."""


class TabledWindows(PoolWindows):
    """Windows by tables, made at compile time."""

    @cached_property
    def constants(self) -> list[Array]:
        return self.tables.constants()

    @property
    def padding(self) -> Value:
        return self.pointers[2]

    def interior(self, axis: int) -> tuple[int, int]:
        return self.tables.interior(axis)

    def first(self, axis: int, index: Value) -> Value:
        kernel = self.tables.pool.kernel[axis]
        return self.b.at(self.pointers[axis], self.b.mul(index, 8 * kernel))

    def tap(self, axis: int, first: Value, number: Value) -> Value:
        return self.b.load_index(self.b.at(first, self.b.mul(number, 8)))

    def is_inside(self, axis: int, tap: Value) -> Value:
        return self.b.compare("ne", self.b.index, tap, str(self.tables.outside))

    def offset(self, axis: int, tap: Value) -> Value:
        return tap

    def position(self, row: Value, column: Value) -> Position:
        return (self.b.add(self.b.mul(row, self.tables.pool.type.shape[2]), column),)

    def scale(self, position: Position) -> Value:
        return self.b.load(FLOAT, self._entry(3, position), align=4)

    def correction(self, position: Position) -> Value:
        return self.b.load(I32, self._entry(4, position), align=4)

    def _entry(self, table: int, position: Position) -> Value:
        return self.b.at(self.pointers[table], self.b.mul(position[0], 4))


class FreeWindows(PoolWindows):
    """Windows by arithmetic, in the order and precision of the tables."""

    @cached_property
    def constants(self) -> list[Array]:
        return [self.tables.padding_row()]

    @property
    def padding(self) -> Value:
        return self.pointers[0]

    def interior(self, axis: int) -> tuple[Dim, Dim]:
        pool = self.tables.pool
        if pool.kernel[0] * pool.kernel[1] > MAX_TAPS:
            return 0, 0
        before, stride = pool.pads[axis], pool.strides[axis]
        reach = pool.dilations[axis] * (pool.kernel[axis] - 1)
        last = (pool.x.type.shape[axis + 1] + before - reach - 1) // stride
        first = minimum((-(-before // stride), pool.type.shape[axis + 1]))
        return first, maximum((first, last + 1))

    def first(self, axis: int, index: Value) -> Value:
        pool = self.tables.pool
        return self.b.add(self.b.mul(index, pool.strides[axis]), -pool.pads[axis])

    def tap(self, axis: int, first: Value, number: Value) -> Value:
        return self.b.add(first, self.b.mul(number, self.tables.pool.dilations[axis]))

    def is_inside(self, axis: int, tap: Value) -> Value:
        size = self.tables.pool.x.type.shape[axis + 1]
        return self.b.compare("ult", self.b.index, tap, str(size))

    def offset(self, axis: int, tap: Value) -> Value:
        return self.b.mul(tap, self.tables.pitches[axis])

    def position(self, row: Value, column: Value) -> Position:
        return row, column

    def scale(self, position: Position) -> Value:
        b, pool = self.b, self.tables.pool
        assert isinstance(pool, AveragePool)
        elements = self._limit("smax", self._elements(position, pool.count_include_pad), 1)
        if pool.out is None:
            return b.cast("sitofp", b.index, elements, FLOAT)
        divisor = b.cast("sitofp", b.index, elements, DOUBLE)
        share = b.op("fdiv", DOUBLE, literal(DOUBLE, 1.0), divisor)
        scale = b.op("fmul", DOUBLE, literal(DOUBLE, pool.step_ratio), share)
        return b.cast("fptrunc", DOUBLE, scale, FLOAT)

    def correction(self, position: Position) -> Value:
        zero_point = self.tables.pool.x.type.params.zero_point
        total = self.b.op("mul", self.b.index, self._elements(position, False), str(zero_point))
        return self.b.as_int(total)

    def _elements(self, position: Position, padded: bool) -> Value:
        """Taps of a window inside the image, or the padded image."""
        down, across = (self._taps(axis, i, padded) for axis, i in enumerate(position))
        return self.b.op("mul", self.b.index, down, across)

    def _taps(self, axis: int, index: Value, padded: bool) -> Value:
        """The same along one axis."""
        b, pool = self.b, self.tables.pool
        pad, size = pool.pads[axis], pool.x.type.shape[axis + 1]
        before, after = (pad, pool.pads[axis + 2]) if padded else (0, 0)
        begin, end = (
            self._taps_below(axis, index, limit) for limit in (pad - before, size + after + pad)
        )
        end = self._limit("smin", end, pool.kernel[axis])
        return self._limit("smax", b.op("sub", b.index, end, begin), 0)

    def _taps_below(self, axis: int, index: Value, limit: Dim) -> Value:
        """Taps of a window before row or column ``limit`` of the padded image, without an end."""
        b, pool = self.b, self.tables.pool
        step = pool.dilations[axis]
        room = b.op("sub", b.index, str(limit), b.mul(index, pool.strides[axis]))
        return b.divide(b.add(self._limit("smax", room, 0), step - 1), step)[0]

    def _limit(self, name: str, value: Value, limit: int) -> Value:
        kind = self.b.index
        return self.b.call(f"llvm.{name}.{kind}", kind, (kind, value), (kind, str(limit)))


def full_scale(pool: AveragePool) -> float:
    """The divisor or multiplier of windows inside the image."""
    elements = np.array(pool.kernel[0] * pool.kernel[1], np.float64)
    return float(elements if pool.out is None else pool.output_scales(elements))
