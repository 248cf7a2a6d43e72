"""``Resize``: two source rows and columns for each result, channels in vectors.

At free sizes, source rows and weights are computed as ``Resize.taps`` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import (
    load_lanes,
    load_strided,
    store_results,
    store_strided,
)
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis, Nest, emit_row
from quantglow.codegen.llvm.kernels.vector.vectors import Piece
from quantglow.codegen.llvm.values import (
    FLOAT,
    I1,
    I32,
    I64,
    Type,
    Value,
    bits_type,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops import Resize
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.size import Dim, is_free, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""The transformations that are computed; others have tables, which fix the sizes."""

BLOCK = 256
"""Columns whose taps are computed before they are used: a multiple of all vectors."""


@dataclass
class FreeTaps:
    """The taps along H (0) or W (1), ``pitch`` bytes apart."""

    b: Builder
    target: Target
    op: Resize
    axis: int
    pitch: Dim

    @staticmethod
    def applies(op: Resize, axis: int, pitch: Dim) -> bool:
        """Whether the taps depend on free sizes."""
        sizes = (op.x.type.shape[axis + 1], op.sizes[axis], pitch)
        return any(map(is_free, sizes)) and op.coordinates in COORDINATES

    def offsets(self, index: Value) -> list[Value]:
        """Bytes to the sources of a result; one for the nearest neighbor."""
        b = self.b
        sources = self._sources(1, b.as_int(index))
        return [b.mul(b.as_index(I32, source), self.pitch) for source in sources]

    def weights(self, index: Value) -> list[Value]:
        """The float32 weights of two sources, none of a single one."""
        return self._weights(1, self.b.as_int(index))

    def _sources(self, lanes: int, index: Value) -> list[Value]:
        """int32 rows for lanes of results."""
        if self.op.mode == "nearest":
            return [self._nearest(lanes, index)]
        return list(self._pair(lanes, self._limited(lanes, self._coordinates(lanes, index))))

    def _weights(self, lanes: int, index: Value) -> list[Value]:
        if self.op.mode == "nearest":
            return []
        b, kind = self.b, vector(lanes, FLOAT)
        source = self._limited(lanes, self._coordinates(lanes, index))
        first, second = self._pair(lanes, source)
        fraction = b.op("fsub", kind, source, vectors.int_to_float(b, lanes, first))
        is_same = b.compare("eq", vector(lanes, I32), first, second)
        weight = b.select(kind, is_same, splat(kind, f32(0.5)), fraction)
        return [b.op("fsub", kind, splat(kind, f32(1.0)), weight), weight]

    def _size(self, lanes: int, value: Dim) -> Value:
        """A size in int32 lanes."""
        return self.b.broadcast(lanes, I32, self.b.as_int(str(value)))

    def _last(self, lanes: int) -> Value:
        return self._size(lanes, self.op.x.type.shape[self.axis + 1] - 1)

    def _pair(self, lanes: int, source: Value) -> tuple[Value, Value]:
        """The rows at and after coordinates that are not negative."""
        first = self._row(lanes, self._whole(lanes, source))
        return first, self._row(lanes, vectors.add_constant(self.b, lanes, first, 1))

    def _whole(self, lanes: int, source: Value) -> Value:
        return self.b.cast("fptosi", vector(lanes, FLOAT), source, vector(lanes, I32))

    def _row(self, lanes: int, whole: Value) -> Value:
        """Integers up to the last row: float32 rounds its number up if it is large."""
        kind = vector(lanes, I32)
        pair = (kind, whole), (kind, self._last(lanes))
        return self.b.call(f"llvm.smin.{vector(lanes, I32).suffix}", kind, *pair)

    def _nearest(self, lanes: int, index: Value) -> Value:
        """The rows nearest to coordinates; their limits are integers, so they are limited first."""
        b, rounding = self.b, self.op.rounding or "round_prefer_floor"
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        source = self._coordinates(lanes, index)
        if rounding.startswith("round"):
            half = f32(-0.5 if rounding == "round_prefer_floor" else 0.5)
            source = b.op("fadd", kind, source, splat(kind, half))
        source = self._limited(lanes, source)
        whole = self._whole(lanes, source)
        if rounding in ("floor", "round_prefer_ceil"):
            return self._row(lanes, whole)
        above = b.compare("ogt", kind, source, vectors.int_to_float(b, lanes, whole))
        after = b.op("add", ints, whole, b.cast("zext", vector(lanes, I1), above, ints))
        return self._row(lanes, after)

    def _limited(self, lanes: int, source: Value) -> Value:
        """Coordinates moved into the source."""
        b, kind = self.b, vector(lanes, FLOAT)
        source = vectors.max_constant(b, kind, source, 0.0)
        high = vectors.int_to_float(b, lanes, self._last(lanes))
        return b.select(kind, b.compare("olt", kind, source, high), source, high)

    def _coordinates(self, lanes: int, index: Value) -> Value:
        """The float32 coordinates of results in the source."""
        b, kind, zero = self.b, vector(lanes, FLOAT), f32(0.0)
        number, resized = vectors.int_to_float(b, lanes, index), self.op.sizes[self.axis]
        if self.op.coordinates == "align_corners":
            steps = vectors.int_to_float(b, lanes, self._size(lanes, resized - 1))
            span = b.op("fmul", kind, number, vectors.int_to_float(b, lanes, self._last(lanes)))
            # A single result has coordinate 0.
            several = b.compare("ogt", kind, steps, splat(kind, zero))
            return b.op("fdiv", kind, span, b.select(kind, several, steps, splat(kind, f32(1.0))))
        scale, half = splat(kind, f32(self.op.scales[self.axis])), splat(kind, f32(0.5))
        if self.op.coordinates == "asymmetric":
            return b.op("fdiv", kind, number, scale)
        center = b.op("fadd", kind, number, half)
        source = b.op("fsub", kind, b.op("fdiv", kind, center, scale), half)
        if self.op.coordinates == "half_pixel":
            return source
        single = b.compare(
            "eq", vector(lanes, I32), self._size(lanes, resized), self._size(lanes, 1)
        )
        return b.select(kind, single, splat(kind, zero), source)


@dataclass
class FreeColumns(FreeTaps):
    """Taps of columns, computed in vectors for a block of columns."""

    def __post_init__(self) -> None:
        self._begin = ""
        self._tables: list[tuple[Type, Value]] = []

    def fill(self, begin: Value, end: Value) -> None:
        """Compute the taps of at most ``BLOCK`` columns."""
        b, lanes = self.b, self.target.f32_lanes
        kind = vector(lanes, I32)
        self._begin, self._tables = begin, []
        count = 1 if self.op.mode == "nearest" else 4
        rooms = [b.room(f"[{BLOCK} x i32]") for _ in range(count)]
        steps = f"<{', '.join(f'i32 {lane}' for lane in range(lanes))}>"
        with b.loop(begin, end, lanes) as column:
            first = b.broadcast(lanes, I32, b.as_int(column))
            index = b.op("add", kind, first, steps)
            columns = [(kind, value) for value in self._sources(lanes, index)]
            columns += [(vector(lanes, FLOAT), value) for value in self._weights(lanes, index)]
            at = b.mul(b.op("sub", b.index, column, begin), 4)
            for room, (lane_kind, value) in zip(rooms, columns, strict=True):
                b.store(lane_kind, value, b.at(room, at), align=4)
        elements = [I32] * (1 if count == 1 else 2) + [FLOAT] * (count // 2)
        self._tables = list(zip(elements, rooms, strict=True))

    def offsets(self, index: Value) -> list[Value]:
        b = self.b
        wide = [b.as_index(I32, source) for source in self._loaded(I32, index)]
        return [b.mul(source, self.pitch) for source in wide]

    def weights(self, index: Value) -> list[Value]:
        return self._loaded(FLOAT, index)

    def _loaded(self, element: Type, index: Value) -> list[Value]:
        b = self.b
        at = b.mul(b.op("sub", b.index, index, self._begin), 4)
        return [b.load(e, b.at(room, at), align=4) for e, room in self._tables if e == element]


@emits(Resize)
def emit_resize(step: Compute, target: Target) -> KernelCall:
    """One work item for each row of the result."""
    op = step.op
    assert isinstance(op, Resize)
    (x,) = step.inputs
    kernel = _Resize(Builder(index=target.isa.index), target, op, x, step.output)
    kernel.emit()
    n, rows, _, _ = op.type.shape
    work = likely(op.type.size) * (1 if op.mode == "nearest" else 8) / 4
    pointers: tuple[View | Array, ...] = (step.output, x, *kernel.tables)
    return KernelCall(kernel.b.finish(), pointers, n * rows, work, "resize")


@dataclass
class _Resize:
    b: Builder
    target: Target
    op: Resize
    x: View
    y: View

    @property
    def dtype(self) -> DType:
        return self.x.type.dtype

    @property
    def strides(self) -> list[Dim]:
        """Bytes; the type is the same on both sides."""
        return [s * self.dtype.nbytes for s in self.x.strides]

    @property
    def linear(self) -> bool:
        return self.op.mode == "linear"

    @cached_property
    def free(self) -> list[FreeTaps | None]:
        """The taps of rows and of columns where these depend on free sizes."""
        kinds = (FreeTaps, FreeColumns)
        return [
            kind(self.b, self.target, self.op, axis, self.strides[axis + 1])
            if kind.applies(self.op, axis, self.strides[axis + 1])
            else None
            for axis, kind in enumerate(kinds)
        ]

    @cached_property
    def tables(self) -> list[Array]:
        """Rows, then columns: byte offsets int64 [size, 2] and weights float32 [size, 2]."""
        tables: list[Array] = []
        for axis, free in enumerate(self.free):
            if free is not None:
                continue
            taps, stride = self.op.taps(axis), int(self.strides[axis + 1])
            offsets = np.stack([taps.first, taps.second], axis=1).astype(np.int64) * stride
            weights = np.stack([np.float32(1) - taps.weight, taps.weight], axis=1)
            tables += [offsets, weights.astype(np.float32)]
        return tables

    def emit(self) -> None:
        b = self.b
        y, x, *self.pointers = b.kernel(2 + len(self.tables))
        y_strides = [s * self.dtype.nbytes for s in self.y.strides]
        rows = self.op.type.shape[1]
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, rows)
            at_y = b.at(y, b.mul(image, y_strides[0]))
            at_y = b.at(at_y, b.mul(row, y_strides[1]))
            at_x = b.at(x, b.mul(image, self.strides[0]))
            above = [b.at(at_x, offset) for offset in self.offsets(0, row)]
            v = self.weights(0, row)
            with self.columns() as column:
                across = self.offsets(1, column)
                u = self.weights(1, column)
                sources = [b.at(line, offset) for line in above for offset in across]
                target = b.at(at_y, b.mul(column, y_strides[2]))
                self.channels([target, *sources], y_strides[3], u, v)

    @contextmanager
    def columns(self) -> Iterator[Value]:
        """A loop over the columns of a result."""
        b, free, count = self.b, self.free[1], self.op.type.shape[2]
        if not isinstance(free, FreeColumns):
            with b.loop(0, count) as column:
                yield column
            return
        with b.loop(0, count, BLOCK) as begin:
            limits = ((b.index, b.add(begin, BLOCK)), (b.index, str(count)))
            end = b.call(f"llvm.smin.{b.index}", b.index, *limits)
            free.fill(begin, end)
            with b.loop(begin, end) as column:
                yield column

    def offsets(self, axis: int, index: Value) -> list[Value]:
        """Bytes from the first row or column to each source of a result."""
        free = self.free[axis]
        return self.pair(I64, axis, index) if free is None else free.offsets(index)

    def weights(self, axis: int, index: Value) -> list[Value]:
        """The float32 weight of each."""
        free = self.free[axis]
        return self.pair(FLOAT, axis, index) if free is None else free.weights(index)

    def pair(self, element: Type, axis: int, index: Value) -> list[Value]:
        """Both entries of a table for an index; nearest neighbors have one offset only."""
        nbytes = 8 if element == I64 else 4
        axes = [a for a, free in enumerate(self.free) if free is None]
        table = self.pointers[2 * axes.index(axis) + (element == FLOAT)]
        count = 2 if self.linear else int(element == I64)
        at = self.b.at(table, self.b.mul(index, 2 * nbytes))
        entries = (self.b.at(at, i * nbytes) for i in range(count))
        if element == I64:
            return [self.b.load_index(entry) for entry in entries]
        return [self.b.load(element, entry, nbytes) for entry in entries]

    def channels(
        self, pointers: Sequence[Value], stride: Dim, u: Sequence[Value], v: Sequence[Value]
    ) -> None:
        """All channels of a result pixel."""
        strides = (stride, *(self.strides[3] for _ in pointers[1:]))
        row = LoopAxis(self.op.type.shape[3], strides)
        itemsize = 4 if self.linear else self.dtype.nbytes
        lanes = self.target.vector_nbytes // itemsize
        if not self.target.isa.has_masks:
            lanes = vectors.narrower(lanes, row.size)

        def copy(at: Sequence[Value], group: Sequence[Piece]) -> None:
            element, nbytes = bits_type(8 * self.dtype.nbytes), self.dtype.nbytes
            for piece in group:
                value = load_strided(self.b, element, nbytes, at[1], self.strides[3], piece)
                store_strided(self.b, element, nbytes, at[0], stride, piece, value)

        def interpolate(at: Sequence[Value], group: Sequence[Piece]) -> None:
            values = [self.interpolated(at[1:], piece, u, v) for piece in group]
            store_results(self.b, self.target, self.dtype, at[0], stride, group, values)

        body = interpolate if self.linear else copy
        emit_row(self.b, self.target, Nest((), row, lanes, 4), pointers, body)

    def interpolated(
        self, sources: Sequence[Value], piece: Piece, u: Sequence[Value], v: Sequence[Value]
    ) -> Value:
        """``(a (1-u) + b u) (1-v) + (c (1-u) + d u) v``, rounded once for integers."""
        corners = [self.corner(pointer, piece) for pointer in sources]
        top = self.mixed(piece.lanes, corners[:2], u)
        bottom = self.mixed(piece.lanes, corners[2:], u)
        value = self.mixed(piece.lanes, (top, bottom), v)
        if self.dtype.is_float:
            return value
        params, limits = self.op.type.params, self.dtype.limits
        return vectors.quantize_steps(
            self.b, self.target, piece.lanes, value, *limits, params.zero_point
        )

    def corner(self, pointer: Value, piece: Piece) -> Value:
        """float32 lanes of a source pixel, zero point removed."""
        value = load_lanes(self.b, self.dtype, pointer, self.strides[3], piece)
        if self.dtype.is_float:
            return value
        centered = vectors.center(self.b, piece.lanes, value, self.op.x.type.params.zero_point)
        return vectors.int_to_float(self.b, piece.lanes, centered)

    def mixed(self, lanes: int, values: Sequence[Value], weights: Sequence[Value]) -> Value:
        b, kind = self.b, vector(lanes, FLOAT)
        terms = [
            b.op("fmul", kind, value, b.broadcast(lanes, FLOAT, weight))
            for value, weight in zip(values, weights, strict=True)
        ]
        return b.op("fadd", kind, *terms)
