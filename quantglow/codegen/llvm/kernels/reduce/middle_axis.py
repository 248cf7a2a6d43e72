"""Reductions of the middle axis of [outer, reduced, inner]: exact integer sums, or float."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder, Index
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import (
    load_lanes,
    load_strided,
    store_results,
    store_strided,
)
from quantglow.codegen.llvm.kernels.vector.loops import Fold, fold_row
from quantglow.codegen.llvm.kernels.vector.math_functions import literal
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece, pieces
from quantglow.codegen.llvm.values import DOUBLE, FLOAT, I1, I32, Type, Value, f32, splat, vector
from quantglow.ir.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ir.program.program import View
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, likely
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

Reduction = ReduceMean | ReduceSum | ReduceMax | ReduceMin
UNROLL = 4
"""Vectors of neighboring results that a work item computes together, at most."""
MOST_ROWS = 4
"""Rows that one iteration adds, at most."""
SHORT = 4
"""Lanes of a narrow vector, for the end of a free number of results."""
MIN_BLOCKS = 4
"""Work items at least, where the inner axis can be cut so often."""


@dataclass
class ReduceKernel:
    """Generator of one reduction: a work item for each outer index and block of inner indices."""

    b: Builder
    target: Target
    op: Reduction
    x: View
    y: View

    def __post_init__(self) -> None:
        outer, self.reduced, inner = self.x.shape
        itemsize, out_itemsize = self.dtype.nbytes, self.y.type.dtype.nbytes
        x_outer, self.step, x_inner = (s * itemsize for s in self.x.strides)
        y_outer, _, y_inner = (s * out_itemsize for s in self.y.strides)
        is_single = decide(inner == 1) and decide(outer > 1)
        if is_single and decide(abs(x_outer) < abs(self.step)):
            # Neighbors in memory belong to different results: vectors run across results.
            outer, inner = 1, outer
            x_inner, y_inner = x_outer, y_outer
        self.outer, self.inner = outer, inner
        self.x_strides, self.y_strides = (x_outer, x_inner), (y_outer, y_inner)

    @property
    def applies(self) -> bool:
        return True

    @property
    def dtype(self) -> DType:
        return self.x.type.dtype

    @property
    def sums(self) -> bool:
        return isinstance(self.op, ReduceMean | ReduceSum)

    @cached_property
    def lanes(self) -> int:
        itemsize = 4 if self.sums else self.dtype.nbytes
        return self.target.vector_nbytes // itemsize

    @cached_property
    def block(self) -> int:
        """Inner indices of a work item: a multiple of a vector."""
        vectors_in_row = -(-likely(self.inner) // self.lanes)
        return self.lanes * max(1, min(UNROLL, vectors_in_row // MIN_BLOCKS))

    @property
    def blocks(self) -> Dim:
        return -(-self.inner // self.block)

    @property
    def items(self) -> Dim:
        return self.outer * self.blocks

    def emit(self) -> None:
        b = self.b
        y, x = b.kernel(2)
        with b.loop("%begin", "%end") as item:
            outer, block = b.divide(item, self.blocks)
            x_row = b.at(x, b.mul(outer, self.x_strides[0]))
            y_row = b.at(y, b.mul(outer, self.y_strides[0]))
            if decide(self.inner == 1):
                self.row(y_row, x_row)
            else:
                self.columns(y_row, x_row, block)

    # -- along the reduced axis, for a single result

    def row(self, y: Value, x: Value) -> None:
        """Vectors along the reduced axis, combined at the end."""

        def load(index: Value | int, piece: Piece) -> Value:
            step = self.step
            offset: Index = index * step if isinstance(index, int) else self.b.mul(index, step)
            return self.load(self.b.at(x, offset), step, piece)

        fold = Fold(self.kind, self.start, self.combine, load)
        total = fold_row(self.b, fold, self.lanes, self.reduced)
        self.store(y, 0, [Piece(0, 1, 1)], [self.finish(1, total)])

    # -- vectors of neighboring results

    def columns(self, y: Value, x: Value, block: Value) -> None:
        """A block of results; the last block may be shorter."""
        b = self.b
        at_x = b.at(x, b.mul(block, self.block * self.x_strides[1]))
        at_y = b.at(y, b.mul(block, self.block * self.y_strides[1]))
        short = self.inner % self.block
        if isinstance(short, Size):
            self._free_columns(at_y, at_x, block)
        elif not short:
            self.reduce_block(at_y, at_x, self.block)
        elif decide(self.blocks == 1):
            self.reduce_block(at_y, at_x, short)
        else:
            last = b.compare("eq", b.index, block, str(self.blocks - 1))
            with b.when(b.op("xor", I1, last, "true")):
                self.reduce_block(at_y, at_x, self.block)
            with b.when(last):
                self.reduce_block(at_y, at_x, short)

    def _free_columns(self, y: Value, x: Value, block: Value) -> None:
        """A block of a free number of results; the last one in vectors, then narrower ones."""
        b = self.b
        begin: Dim = 0
        is_whole = b.compare("slt", b.index, block, str(self.inner // self.block))
        with b.when(is_whole):
            self.reduce_block(y, x, self.block)
        with b.when(b.op("xor", I1, is_whole, "true")):
            remainder = self.inner % self.block
            for width in sorted({self.lanes, min(SHORT, self.lanes), 1}, reverse=True):
                end = remainder - remainder % width
                with b.loop(begin, end, width) as index:
                    at_y = b.at(y, b.mul(index, self.y_strides[1]))
                    self.reduce_block(at_y, b.at(x, b.mul(index, self.x_strides[1])), width)
                begin = end

    def reduce_block(self, y: Value, x: Value, width: int) -> None:
        b = self.b
        group = list(pieces(self.target, 0, width, self.lanes))
        totals = [self.start(p.lanes) for p in group]
        if isinstance(self.reduced, Size):
            whole = self.reduced - self.reduced % MOST_ROWS
            totals = self._rows(group, totals, x, whole, MOST_ROWS)
            totals = self._rows(group, totals, b.at(x, whole * self.step), self.reduced - whole, 1)
        else:
            unroll = next(u for u in (MOST_ROWS, 3, 2, 1) if self.reduced % u == 0)
            totals = self._rows(group, totals, x, self.reduced, unroll)
        results = [self.finish(p.lanes, t) for p, t in zip(group, totals, strict=True)]
        self.store(y, self.y_strides[1], group, results)

    def _rows(
        self, group: Sequence[Piece], totals: Sequence[Value], x: Value, rows: Dim, unroll: int
    ) -> list[Value]:
        """``totals`` combined with ``rows`` rows, a multiple of ``unroll``."""
        b, count = self.b, rows // unroll
        if not isinstance(count, Size) and count == 0:
            return list(totals)
        start = [(self.kind(p.lanes), total) for p, total in zip(group, totals, strict=True)]
        loop = b.begin_times(count, start)
        totals = list(loop.carried)
        at = b.at(x, b.mul(loop.index, unroll * self.step))
        for repeat in range(unroll):
            row = b.at(at, repeat * self.step)
            totals = [
                self.combine(p.lanes, total, self.load(row, self.x_strides[1], p))
                for p, total in zip(group, totals, strict=True)
            ]
        return b.end_times(loop, count, totals)

    # -- arithmetic

    def kind(self, lanes: int) -> Type:
        if self.sums and not self.dtype.is_float:
            return vector(lanes, I32)
        return vector(lanes, ELEMENTS[self.dtype])

    def start(self, lanes: int) -> Value:
        kind = self.kind(lanes)
        return splat(kind, vectors.literal(kind.element, self._neutral()))

    def _neutral(self) -> float | int:
        if self.sums:
            return 0
        largest = isinstance(self.op, ReduceMax)
        if self.dtype.is_float:
            return -math.inf if largest else math.inf
        return self.dtype.limits[0 if largest else 1]

    def load(self, pointer: Value, stride: Dim, piece: Piece) -> Value:
        if self.sums:
            return load_lanes(self.b, self.dtype, pointer, stride, piece)
        element = ELEMENTS[self.dtype]
        return load_strided(self.b, element, self.dtype.nbytes, pointer, stride, piece)

    def combine(self, lanes: int, total: Value, value: Value) -> Value:
        if self.sums:
            operation = "fadd" if self.dtype.is_float else "add"
            return self.b.op(operation, self.kind(lanes), total, value)
        extreme = vectors.maximum if isinstance(self.op, ReduceMax) else vectors.minimum
        return extreme(self.b, lanes, self.dtype, total, value)

    def finish(self, lanes: int, total: Value) -> Value:
        """The mean of a sum; other reductions are done."""
        op, b = self.op, self.b
        if not isinstance(op, ReduceMean):
            return total
        kind = vector(lanes, FLOAT)
        if op.out is None:
            return b.op("fdiv", kind, total, self._count(op, lanes))
        centered = self._centered(op, lanes, total)
        real = vectors.int_to_float(b, lanes, centered)
        steps = b.op("fmul", kind, real, self._scale(op, lanes))
        limits, zero_point = op.out.dtype.limits, op.type.params.zero_point
        return vectors.quantize_steps(b, self.target, lanes, steps, *limits, zero_point)

    def _count(self, op: ReduceMean, lanes: int) -> Value:
        """Elements of a mean."""
        if not isinstance(op.count, Size):
            return splat(vector(lanes, FLOAT), f32(op.count))
        count = self.b.cast("sitofp", self.b.index, str(op.count), FLOAT)
        return self.b.broadcast(lanes, FLOAT, count)

    def _centered(self, op: ReduceMean, lanes: int, total: Value) -> Value:
        """A sum without the zero points in it."""
        b, zero_points = self.b, op.count * op.x.type.params.zero_point
        if not isinstance(zero_points, Size):
            return vectors.center(b, lanes, total, zero_points)
        narrow = b.as_int(str(zero_points))
        return b.op("sub", self.kind(lanes), total, b.broadcast(lanes, I32, narrow))

    def _scale(self, op: ReduceMean, lanes: int) -> Value:
        """``ReduceMean.output_scale``; of a free count computed in its order."""
        if not is_free(op.count):
            return splat(vector(lanes, FLOAT), f32(float(op.output_scale())))
        b, scale, step = self.b, op.x.type.params.scale, op.type.params.scale
        count = b.cast("sitofp", b.index, str(op.count), DOUBLE)
        divisor = b.op("fmul", DOUBLE, literal(DOUBLE, step), count)
        ratio = b.op("fdiv", DOUBLE, literal(DOUBLE, scale), divisor)
        return b.broadcast(lanes, FLOAT, b.cast("fptrunc", DOUBLE, ratio, FLOAT))

    def store(
        self, pointer: Value, stride: Dim, group: Sequence[Piece], values: Sequence[Value]
    ) -> None:
        out = self.y.type.dtype
        if self.sums:
            store_results(self.b, self.target, out, pointer, stride, group, values)
            return
        for piece, value in zip(group, values, strict=True):
            store_strided(self.b, ELEMENTS[out], out.nbytes, pointer, stride, piece, value)

    def call(self) -> KernelCall:
        self.emit()
        work = likely(self.op.x.type.size) / 4
        return KernelCall(self.b.finish(), (self.y, self.x), self.items, work, "reduce")
