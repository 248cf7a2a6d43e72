"""``RowMap`` in short loops, for small code, and the kernels of ``RowMap`` in order of preference.

Processors without vectors execute an instruction for each lane, so a loop over a few elements costs
little more than blocks of them, and takes its code once.  The partial sums of a row lie in memory,
in the order in which the interpreter adds them: element i belongs to sum i mod ``PARTIAL_SUMS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.elementwise.row_map import RowKernel, combination, result
from quantglow.codegen.llvm.kernels.elementwise.row_values import Invariants, RowValues
from quantglow.codegen.llvm.kernels.vector.access import store_results
from quantglow.codegen.llvm.kernels.vector.loops import (
    Combination,
    LoopAxis,
    broadcast_axes,
    item_pointers,
    merge_axes,
)
from quantglow.codegen.llvm.kernels.vector.vectors import Piece
from quantglow.codegen.llvm.values import FLOAT, Operand, Value, vector
from quantglow.ir.ops import RowMap
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.functions import PARTIAL_SUMS
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import is_free, likely, prod

FLOAT_NBYTES = 4
TOGETHER = 8
"""Sums that are combined in registers: the square root of their number."""


@dataclass
class RowLoops(RowKernel):
    """Generator of a kernel without unrolled code."""

    @property
    def applies(self) -> bool:
        """Whether code counts and lanes are instructions of their own."""
        return self.lanes > 0 and not is_free(self.length)

    @property
    def lanes(self) -> int:
        """Elements of a step."""
        return self.target.isa.float_lanes

    @property
    def together(self) -> int:
        """Rows of an item: no instruction of another row fills a wait."""
        return 1

    @property
    def is_short(self) -> bool:
        """Whether values stay in registers: they do not."""
        return False

    def text(self, axes: Sequence[LoopAxis]) -> str:
        b = self.b
        pointers = b.kernel(len(self.axis.strides))
        self.plan()
        memory = self.reserved()
        sums = PartialSums(b, self.lanes, b.allocate(FLOAT_NBYTES * PARTIAL_SUMS, 64))
        with b.loop("%begin", "%end") as item:
            self.row(_RowLoop(self, item_pointers(b, item, axes, pointers), memory, sums))
        return b.finish()

    def row(self, row: _RowLoop) -> None:
        """All passes over a row."""
        for stage, reduction, saved in zip(self.stages, self.reductions, self.saves, strict=False):
            total = row.reduced(stage, saved, combination(self.b, reduction.op))
            row.invariants.record(reduction, total)
            row.readable |= saved
        row.write(self.op.expression)


@dataclass
class PartialSums:
    """The partial sums of a row in memory."""

    b: Builder
    lanes: int
    memory: Value

    def at(self, index: Operand) -> Value:
        """The address of a sum."""
        return self.b.at(self.memory, self.b.mul(index, FLOAT_NBYTES))

    def clear(self, fold: Combination, begin: int) -> None:
        """Set those from ``begin`` on to the neutral element."""
        for start, end, lanes in split(begin, PARTIAL_SUMS, self.lanes):
            with self.b.loop(start, end, lanes) as index:
                self.b.store(fold.kind(lanes), fold.neutral(lanes), self.at(index), FLOAT_NBYTES)

    def begin(self, fold: Combination, lanes: int, index: Value, value: Value) -> None:
        """Set some sums to the first values."""
        first = fold.combine(lanes, fold.neutral(lanes), value)
        self.b.store(fold.kind(lanes), first, self.at(index), FLOAT_NBYTES)

    def combine(self, fold: Combination, lanes: int, index: Value, value: Value) -> None:
        """Combine some sums with the lanes of a value."""
        at, kind = self.at(index), fold.kind(lanes)
        total = self.b.load(kind, at, FLOAT_NBYTES)
        self.b.store(kind, fold.combine(lanes, total, value), at, FLOAT_NBYTES)

    def total(self, fold: Combination) -> Value:
        """All sums combined: the second half with the first one, down to one."""
        # Sums of floats depend on their order: halving is the interpreter's, and so is the order
        # within ``joined``.
        b = self.b
        with b.loop(0, TOGETHER) as index:
            at = self.at(index)
            b.store(FLOAT, self.joined(fold, at, TOGETHER), at, FLOAT_NBYTES)
        return self.joined(fold, self.memory, 1)

    def joined(self, fold: Combination, at: Value, distance: int) -> Value:
        """``TOGETHER`` sums, so many sums apart from each other, combined."""
        places = (self.b.at(at, FLOAT_NBYTES * distance * i) for i in range(TOGETHER))
        values = [self.b.load(FLOAT, place, FLOAT_NBYTES) for place in places]
        while len(values) > 1:
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            values = [fold.combine(1, x, y) for x, y in pairs]
        return values[0]


def split(begin: int, end: int, lanes: int) -> Iterator[tuple[int, int, int]]:
    """Begin, end and lanes of loops over a range: whole steps, then single elements."""
    whole = end - (end - begin) % lanes
    if begin < whole:
        yield begin, whole, lanes
    if whole < end:
        yield whole, end, 1


@dataclass
class _RowLoop:
    """The passes over one row; ``pointers`` are those of its first elements."""

    kernel: RowLoops
    pointers: Sequence[Value]
    memory: dict[Expr, Value]
    sums: PartialSums
    readable: set[Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.b, self.target = kernel.b, kernel.target
        self.invariants = Invariants(kernel.values(self.pointers[1:]), kernel.strides, 1)

    def values_at(self, index: Value, lanes: int) -> RowValues:
        """The expressions on the elements of a step."""
        b, kernel = self.b, self.kernel
        operands = zip(self.pointers[1:], kernel.strides, strict=True)
        at = [b.at(pointer, b.mul(index, stride)) for pointer, stride in operands]
        shared = {
            expr: b.broadcast(lanes, self.invariants.row.expression_type(expr), value)
            for expr, value in self.invariants.shared.items()
        }
        values = kernel.values(at, lanes, lanes, shared)
        for expr in sorted(self.readable, key=str):
            kind = vector(lanes, FLOAT)
            values.done[expr] = b.load(kind, self.kept_at(expr, index), FLOAT_NBYTES)
        return values

    def kept_at(self, expr: Expr, index: Value) -> Value:
        """The address of a kept value."""
        return self.b.at(self.memory[expr], self.b.mul(index, FLOAT_NBYTES))

    def reduced(self, stage: Expr, saved: set[Expr], fold: Combination) -> Value:
        """The sum or maximum of an expression over the row."""
        b = self.b
        self.invariants.prepare(stage)
        length = int(self.kernel.length)
        is_single = length <= PARTIAL_SUMS
        self.sums.clear(fold, length if is_single else 0)
        for begin, end, lanes in split(0, length, self.kernel.lanes):
            with b.loop(begin, end, lanes) as index:
                values = self.values_at(index, lanes)
                if is_single:
                    self.sums.begin(fold, lanes, index, values.value(stage))
                else:
                    slot = b.op("and", b.index, index, str(PARTIAL_SUMS - 1))
                    self.sums.combine(fold, lanes, slot, values.value(stage))
                for expr in sorted(saved, key=str):
                    kind = vector(lanes, FLOAT)
                    b.store(kind, values.value(expr), self.kept_at(expr, index), FLOAT_NBYTES)
        return self.sums.total(fold)

    def write(self, expression: Expr) -> None:
        """The last pass."""
        b, dtype = self.b, self.kernel.op.type.dtype
        self.invariants.prepare(expression)
        for begin, end, lanes in split(0, int(self.kernel.length), self.kernel.lanes):
            with b.loop(begin, end, lanes) as index:
                value = result(b, self.values_at(index, lanes), expression)
                at = b.at(self.pointers[0], b.mul(index, dtype.nbytes))
                piece = Piece(0, lanes, lanes)
                store_results(b, self.target, dtype, at, dtype.nbytes, [piece], [value])


KERNELS: tuple[type[RowKernel], ...] = (RowLoops, RowKernel)


@emits(RowMap)
def emit_rows(step: Compute, target: Target) -> KernelCall:
    """One work item for each row; an element is read for the last time just before it is written,
    so that it may run in place."""
    op = step.op
    assert isinstance(op, RowMap)
    views = (step.output, *step.inputs)
    *outer, row = broadcast_axes(op.type.shape, views)
    axes = merge_axes(outer)
    dtypes = tuple(view.type.dtype for view in step.inputs)
    kernels = (kind(Builder(index=target.isa.index), target, op, row, dtypes) for kind in KERNELS)
    kernel = next(kernel for kernel in kernels if kernel.applies)
    work = likely(op.type.size) * (2 + op.expression.size()) / 4
    items = prod(axis.size for axis in axes)
    return KernelCall(lambda: kernel.text(axes), views, items, work, "rows", facts="")
