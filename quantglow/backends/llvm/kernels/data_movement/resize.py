"""``Resize``: two source rows and columns for each result, channels in vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.data_movement.resize_taps import BLOCK, FreeColumns, FreeTaps
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.backends.llvm.kernels.vector.nest import Axis, Nest, emit_row
from quantglow.backends.llvm.kernels.vector.strided import (
    load_lanes,
    load_strided,
    store_results,
    store_strided,
)
from quantglow.backends.llvm.kernels.vector.vectors import Piece
from quantglow.foreign_types import Array
from quantglow.instr.program import Compute, View
from quantglow.lazy import cached_property
from quantglow.ops import Resize
from quantglow.symbolic.size import likely
from quantglow.types import DType


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
    def strides(self) -> list[int]:
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
        found: list[Array] = []
        for axis, free in enumerate(self.free):
            if free is not None:
                continue
            taps, stride = self.op.taps(axis), self.strides[axis + 1]
            offsets = np.stack([taps.first, taps.second], axis=1).astype(np.int64) * stride
            weights = np.stack([np.float32(1) - taps.weight, taps.weight], axis=1)
            found += [offsets, weights.astype(np.float32)]
        return found

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
        return self.pair("i64", axis, index) if free is None else free.offsets(index)

    def weights(self, axis: int, index: Value) -> list[Value]:
        """The float32 weight of each."""
        free = self.free[axis]
        return self.pair("float", axis, index) if free is None else free.weights(index)

    def pair(self, element: str, axis: int, index: Value) -> list[Value]:
        """Both entries of a table for an index; nearest neighbours have one offset only."""
        nbytes = 8 if element == "i64" else 4
        axes = [a for a, free in enumerate(self.free) if free is None]
        table = self.pointers[2 * axes.index(axis) + (element == "float")]
        count = 2 if self.linear else int(element == "i64")
        at = self.b.at(table, self.b.mul(index, 2 * nbytes))
        entries = (self.b.at(at, i * nbytes) for i in range(count))
        if element == "i64":
            return [self.b.load_index(entry) for entry in entries]
        return [self.b.load(element, entry, nbytes) for entry in entries]

    def channels(
        self, pointers: Sequence[Value], stride: int, u: Sequence[Value], v: Sequence[Value]
    ) -> None:
        """All channels of a result pixel."""
        strides = (stride, *(self.strides[3] for _ in pointers[1:]))
        row = Axis(self.op.type.shape[3], strides)
        itemsize = 4 if self.linear else self.dtype.nbytes
        lanes = self.target.vector_nbytes // itemsize
        if not self.target.isa.has_masks:
            lanes = vectors.narrower(lanes, row.size)

        def copy(at: Sequence[Value], group: Sequence[Piece]) -> None:
            element, nbytes = f"i{8 * self.dtype.nbytes}", self.dtype.nbytes
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
        centred = vectors.centre(self.b, piece.lanes, value, self.op.x.type.params.zero_point)
        return vectors.int_to_float(self.b, piece.lanes, centred)

    def mixed(self, lanes: int, values: Sequence[Value], weights: Sequence[Value]) -> Value:
        b, kind = self.b, vector(lanes, "float")
        terms = [
            b.op("fmul", kind, value, b.broadcast(lanes, "float", weight))
            for value, weight in zip(values, weights, strict=True)
        ]
        return b.op("fadd", kind, *terms)
