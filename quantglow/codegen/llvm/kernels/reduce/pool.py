"""``MaxPool`` and ``AveragePool``: channels (or, at stride 1, whole rows of pixels) in vectors.

Windows that lie inside the image are straight code.  Windows at a border loop over taps whose
addresses come from tables (``pool_windows``); taps outside read a row of the padding value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.reduce.pool_windows import (
    PoolTables,
    PoolWindows,
    Position,
    full_scale,
)
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import (
    load_lanes,
    load_strided,
    store_results,
    store_strided,
)
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis, Nest, emit_row
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import (
    ABSENT,
    FLOAT,
    I1,
    I32,
    PTR,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops import AveragePool, MaxPool
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, likely, surely_equal
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

UNROLL = 4

Combine = Callable[[Builder, int, Value, Value], Value]


@emits(MaxPool, AveragePool)
def emit_pool(step: Compute, target: Target) -> KernelCall:
    """One work item for each row of the result."""
    pool = step.op
    assert isinstance(pool, MaxPool | AveragePool)
    (x,) = step.inputs
    kernel = _PoolKernel(Builder(index=target.isa.index), target, pool, x, step.output)
    kernel.emit()
    n, oh, _, _ = pool.type.shape
    work = likely(pool.type.size) * pool.kernel[0] * pool.kernel[1] / 8
    pointers: tuple[View | Array, ...] = (step.output, x, *kernel.windows.constants)
    return KernelCall(kernel.b.finish(), pointers, n * oh, work, "pool")


@dataclass(frozen=True)
class _WindowPointers:
    """A window: pointers to the result, to the image and to the first tap, and its number."""

    y: Value
    image: Value
    tap: Value
    row: Value
    column: Value


@dataclass
class _PoolKernel:
    b: Builder
    target: Target
    pool: MaxPool | AveragePool
    x: View
    y: View

    @cached_property
    def x_strides(self) -> list[Dim]:
        return [s * self.dtype.nbytes for s in self.x.strides]

    @cached_property
    def compile_time(self) -> PoolTables:
        return PoolTables(self.pool, (self.x_strides[1], self.x_strides[2]), self.b.index)

    @cached_property
    def windows(self) -> PoolWindows:
        return PoolWindows.of(self.b, self.compile_time)

    @cached_property
    def y_strides(self) -> list[Dim]:
        return [s * self.y.type.dtype.nbytes for s in self.y.strides]

    @property
    def dtype(self) -> DType:
        return self.x.type.dtype

    @property
    def averages(self) -> bool:
        return isinstance(self.pool, AveragePool)

    @cached_property
    def lanes(self) -> int:
        """Maxima work on elements as they are stored, sums on 32 bits."""
        itemsize = 4 if self.averages else self.dtype.nbytes
        return self.target.vector_nbytes // itemsize

    # -- loops

    def emit(self) -> None:
        b = self.b
        y, x, *self.windows.pointers = b.kernel(2 + len(self.windows.constants))
        _, oh, _, _ = self.pool.type.shape
        top, bottom = self.windows.interior(0)
        count = bottom - top
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, oh)
            y_row = b.at(y, b.mul(image, self.y_strides[0]))
            y_row = b.at(y_row, b.mul(row, self.y_strides[1]))
            x_image = b.at(x, b.mul(image, self.x_strides[0]))
            within = self._within(row, top, bottom)
            if isinstance(count, Size) or count > 0:
                with b.when(within):
                    self.row(y_row, x_image, row)
            if not surely_equal((top, bottom), (0, oh)):
                with b.when(b.op("xor", I1, within, "true")):
                    self.border(y_row, x_image, row, 0, self.pool.type.shape[2])

    def _within(self, row: Value, top: Dim, bottom: Dim) -> Value:
        b = self.b
        below = b.compare("sge", b.index, row, str(top))
        return b.op("and", I1, below, b.compare("slt", b.index, row, str(bottom)))

    def row(self, y: Value, image: Value, row: Value) -> None:
        """A row whose windows need no padding above or below."""
        left, right = self.windows.interior(1)
        width, count = self.pool.type.shape[2], right - left
        if isinstance(count, Size) or count > 0:
            self.border(y, image, row, 0, left)
            self.straight(y, image, row, left, right)
            self.border(y, image, row, right, width)
        else:
            self.border(y, image, row, 0, width)

    def straight(self, y: Value, image: Value, row: Value, left: Dim, right: Dim) -> None:
        """Windows ``left`` to ``right`` of a row, all inside the image."""
        b = self.b
        stride, pads = self.pool.strides, self.pool.pads
        first = b.add(b.mul(row, stride[0] * self.x_strides[1]), -pads[0] * self.x_strides[1])
        start = (left * stride[1] - pads[1]) * self.x_strides[2]
        x = b.at(b.at(image, first), start)
        y = b.at(y, left * self.y_strides[2])
        pixels, channels = self._axes(right - left)
        if pixels is None:
            emit_row(b, self.target, self._nest(channels), [y, x], self.inner(channels))
            return
        with b.loop(0, pixels.size) as column:
            at = [b.at(p, b.mul(column, s)) for p, s in zip((y, x), pixels.strides, strict=True)]
            emit_row(b, self.target, self._nest(channels), at, self.inner(channels))

    def _axes(self, width: Dim) -> tuple[LoopAxis | None, LoopAxis]:
        """Pixels and channels; pixels join the row where neighbors' windows are neighbors."""
        channels = self.pool.type.shape[3]
        x_pixel = self.pool.strides[1] * self.x_strides[2]
        pixels = LoopAxis(width, (self.y_strides[2], x_pixel))
        if decide(channels == 1):
            return None, pixels
        row = LoopAxis(channels, (self.y_strides[3], self.x_strides[3]))
        strides = zip(pixels.strides, row.strides, strict=True)
        if all(decide(p == channels * c) for p, c in strides):
            return None, LoopAxis(width * channels, row.strides)
        return pixels, row

    def _nest(self, row: LoopAxis) -> Nest:
        lanes = self.lanes
        if not self.target.isa.has_masks:
            lanes = vectors.narrower(lanes, row.size)
        return Nest((), row, lanes, UNROLL)

    def border(self, y: Value, image: Value, row: Value, left: Dim, right: Dim) -> None:
        """Windows ``left`` to ``right`` of a row, some of whose taps lie outside."""
        count = right - left
        if not isinstance(count, Size) and count <= 0:
            return
        b = self.b
        itemsize = self.dtype.nbytes
        strides = (self.y_strides[3], self.x_strides[3], itemsize)
        channels = LoopAxis(self.pool.type.shape[3], strides)
        with b.loop(left, right) as column:
            at_y = b.at(y, b.mul(column, self.y_strides[2]))
            body, pointers = self.outer(channels, row, column), [at_y, image, self.windows.padding]
            emit_row(b, self.target, self._nest(channels), pointers, body)

    # -- bodies

    def inner(self, channels: LoopAxis) -> Callable[[Sequence[Value], Sequence[Piece]], None]:
        """Straight code over the taps of a window."""

        def body(at: Sequence[Value], group: Sequence[Piece]) -> None:
            values = []
            for piece in group:
                total: Value = ABSENT
                for ky in range(self.pool.kernel[0]):
                    for kx in range(self.pool.kernel[1]):
                        tap = self._inner_tap(at[1], ky, kx)
                        value = self.load(tap, channels.strides[1], piece)
                        total = self.combine(piece.lanes, total, value) if total else value
                values.append(total)
            self.finish(at[0], channels.strides[0], group, values, None)

        return body

    def _inner_tap(self, first: Value, ky: int, kx: int) -> Value:
        """The address of a tap from that of the first; taps of a row of a free pitch share its."""
        dy, dx = self.pool.dilations
        down, across = ky * dy * self.x_strides[1], kx * dx * self.x_strides[2]
        if is_free(down):
            return self.b.at(self.b.at(first, down), across)
        return self.b.at(first, down + across)

    def outer(
        self, channels: LoopAxis, row: Value, column: Value
    ) -> Callable[[Sequence[Value], Sequence[Piece]], None]:
        """A loop over the taps of a window at the border."""
        kh, kw = self.pool.kernel

        def body(at: Sequence[Value], group: Sequence[Piece]) -> None:
            b = self.b
            start = [(self._kind(p.lanes), self._start(p.lanes)) for p in group]
            rows, columns = self.windows.first(0, row), self.windows.first(1, column)
            down = b.begin_loop(kh, start)
            across = b.begin_loop(kw, list(zip(down.kinds, down.carried, strict=True)))
            pointer, stride = self._tap(at, rows, columns, down.index, across.index, channels)
            values = [
                self.combine(p.lanes, total, self.load(pointer, stride, p))
                for p, total in zip(group, across.carried, strict=True)
            ]
            values = b.end_loop(down, b.end_loop(across, values))
            position = self.windows.position(row, column)
            self.finish(at[0], channels.strides[0], group, values, position)

        return body

    def _tap(
        self,
        at: Sequence[Value],
        rows: Value,
        columns: Value,
        ky: Value,
        kx: Value,
        channels: LoopAxis,
    ) -> tuple[Value, Dim]:
        """The address of a tap, or of the padding; both have the stride of the channels."""
        b, windows = self.b, self.windows
        down, across = windows.tap(0, rows, ky), windows.tap(1, columns, kx)
        valid = b.op("and", I1, windows.is_inside(0, down), windows.is_inside(1, across))
        inside = b.at(b.at(at[1], windows.offset(0, down)), windows.offset(1, across))
        pointer = b.choose(PTR, valid, inside, at[2])
        # A single channel may have any stride; it is never multiplied.
        return pointer, channels.strides[2]

    # -- arithmetic

    def _kind(self, lanes: int) -> Type:
        if self.averages and not self.dtype.is_float:
            return vector(lanes, I32)
        return vector(lanes, ELEMENTS[self.dtype])

    def _start(self, lanes: int) -> Value:
        kind = self._kind(lanes)
        return splat(kind, vectors.literal(kind.element, self.compile_time.padding))

    def load(self, pointer: Value, stride: Dim, piece: Piece) -> Value:
        if self.averages:
            return load_lanes(self.b, self.dtype, pointer, stride, piece)
        element = ELEMENTS[self.dtype]
        return load_strided(self.b, element, self.dtype.nbytes, pointer, stride, piece)

    def combine(self, lanes: int, total: Value, value: Value) -> Value:
        kind = self._kind(lanes)
        if self.averages:
            return self.b.op("fadd" if self.dtype.is_float else "add", kind, total, value)
        return vectors.maximum(self.b, lanes, self.dtype, total, value)

    def finish(
        self,
        pointer: Value,
        stride: Dim,
        group: Sequence[Piece],
        values: Sequence[Value],
        position: Position | None,
    ) -> None:
        """Divide sums, and store.  ``position`` numbers a border window; others are full."""
        out = self.y.type.dtype
        if not self.averages:
            for piece, value in zip(group, values, strict=True):
                store_strided(self.b, ELEMENTS[out], out.nbytes, pointer, stride, piece, value)
            return
        results = [
            self.average(piece.lanes, value, position)
            for piece, value in zip(group, values, strict=True)
        ]
        store_results(self.b, self.target, out, pointer, stride, group, results)

    def average(self, lanes: int, total: Value, position: Position | None) -> Value:
        pool, b = self.pool, self.b
        assert isinstance(pool, AveragePool)
        kind = vector(lanes, FLOAT)
        if pool.out is None:
            return b.op("fdiv", kind, total, self._scale(lanes, position))
        ints = vector(lanes, I32)
        centered = b.op("sub", ints, total, self._correction(lanes, position))
        real = vectors.int_to_float(b, lanes, centered)
        steps = b.op("fmul", kind, real, self._scale(lanes, position))
        limits = pool.out.dtype.limits
        zero_point = pool.type.params.zero_point
        return vectors.quantize_steps(b, self.target, lanes, steps, *limits, zero_point)

    def _scale(self, lanes: int, position: Position | None) -> Value:
        """The divisor or multiplier of a window."""
        if position is not None:
            return self.b.broadcast(lanes, FLOAT, self.windows.scale(position))
        assert isinstance(self.pool, AveragePool)
        return splat(vector(lanes, FLOAT), f32(full_scale(self.pool)))

    def _correction(self, lanes: int, position: Position | None) -> Value:
        """The zero points within a sum."""
        if position is not None:
            return self.b.broadcast(lanes, I32, self.windows.correction(position))
        zero_points = math.prod(self.pool.kernel) * self.pool.x.type.params.zero_point
        return splat(vector(lanes, I32), str(zero_points))
