"""``RowMap``: a scalar expression with sums and maxima of rows, one work item for each row.

A row is passed over once for each sum or maximum and once for the result.  Short rows stay in
registers; of long ones, what a later pass needs again is kept in memory of the kernel's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.elementwise.row_values import Invariants, RowValues, kept_values
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import store_partial, store_results
from quantglow.codegen.llvm.kernels.vector.loops import Combination, LoopAxis, across, item_pointers
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import (
    FLOAT,
    ConstantValue,
    Type,
    Value,
    f32,
    lanes_of_bits,
    splat,
    vector,
)
from quantglow.ir.ops import RowMap
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.functions import PARTIAL_SUMS
from quantglow.ir.symbolic.size import Dim, Shape, Size, decide, is_free, surely_divides
from quantglow.ir.types import DType

SHORT = 2 * PARTIAL_SUMS
"""Elements of a row whose values stay in registers from pass to pass."""
KEPT_NBYTES = 128 * 1024
"""Maximum size of the kept values of a row, in bytes: they lie on the stack."""


@dataclass
class RowKernel:
    """Generator of a kernel.  Operand 0 of pointers and of the row's strides is the result."""

    b: Builder
    target: Target
    op: RowMap
    axis: LoopAxis
    dtypes: tuple[DType, ...]

    @property
    def applies(self) -> bool:
        """Every row."""
        return True

    @property
    def strides(self) -> Shape:
        """Strides of the operands."""
        return self.axis.strides[1:]

    @property
    def length(self) -> Dim:
        return self.axis.size

    @property
    def is_short(self) -> bool:
        return not isinstance(self.length, Size) and self.length <= SHORT

    @property
    def together(self) -> int:
        """Rows whose passes alternate: while one waits for its sum, others have work."""
        alternate = self.is_short or is_free(self.length)
        return 3 if alternate and self.target.registers >= 32 else 2

    def text(self, axes: Sequence[LoopAxis]) -> str:
        b = self.b
        pointers = b.kernel(len(self.axis.strides))
        self.plan()
        memory = [self.reserved() for _ in range(self.together)]
        groups = b.op("udiv", b.index, b.op("sub", b.index, "%end", "%begin"), str(self.together))
        ungrouped = b.add("%begin", b.mul(groups, self.together))
        for begin, end, count in (("%begin", ungrouped, self.together), (ungrouped, "%end", 1)):
            with b.loop(begin, end, count) as item:
                at = [item_pointers(b, b.add(item, i), axes, pointers) for i in range(count)]
                self.rows([_Row(self, p, saved) for p, saved in zip(at, memory, strict=False)])
        return b.finish()

    def plan(self) -> None:
        """Set the passes, the sums and maxima that they give, and the values that each keeps."""
        expression = self.op.expression
        self.reductions = expression.row_functions()
        self.stages = [*(r.args[0] for r in self.reductions), expression]
        self.saves = self.planned()

    def values(
        self,
        at: Sequence[Value] = (),
        lanes: int = 1,
        valid: int | Value = 1,
        shared: dict[Expr, Value] | None = None,
    ) -> RowValues:
        """The expressions on elements at addresses of the operands."""
        return RowValues(
            self.b,
            self.target,
            lanes,
            at,
            self.dtypes,
            strides=self.strides,
            valid=valid,
            shared={} if shared is None else shared,
        )

    def rows(self, rows: Sequence[_Row]) -> None:
        """All passes over some rows."""
        for stage, reduction, saved in zip(self.stages, self.reductions, self.saves, strict=False):
            fold = combination(self.b, reduction.op)
            for row in rows:
                row.invariants.prepare(stage)
                row.invariants.record(reduction, row.reduced(stage, saved, fold))
                row.readable |= saved
        for row in rows:
            row.invariants.prepare(self.op.expression)
            row.write(self.op.expression)

    def planned(self) -> list[set[Expr]]:
        """For each pass but the last, its values that are kept in memory."""
        saves = kept_values(self.stages, Invariants(self.values(), self.strides, 1))
        nbytes = self.together * self.kept_nbytes * sum(map(len, saves))
        if self.is_short or decide(nbytes > KEPT_NBYTES):
            return [set() for _ in saves]
        return saves

    @property
    def kept_nbytes(self) -> Dim:
        """Memory for one float of each element, by whole blocks."""
        return 4 * (self.length + PARTIAL_SUMS)

    def reserved(self) -> dict[Expr, Value]:
        """Memory for the kept values of a row."""
        stages = sorted((e for saved in self.saves for e in saved), key=str)
        nbytes, most = self.kept_nbytes, KEPT_NBYTES // (self.together * max(len(stages), 1))
        if isinstance(nbytes, Size):
            nbytes = most
        return {e: self.b.allocate(nbytes, 64) for e in stages}


@dataclass
class _Row:
    """The passes over one row; ``pointers`` are those of its first elements."""

    kernel: RowKernel
    pointers: list[Value]
    saved: dict[Expr, Value]
    short: dict[int, RowValues] = field(default_factory=dict)
    readable: set[Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.b, self.target, self.length = kernel.b, kernel.target, kernel.length
        self.lanes = self.target.f32_lanes
        row = kernel.values(self.pointers[1:])
        self.invariants = Invariants(row, kernel.strides, self.lanes)

    @property
    def whole(self) -> Dim:
        """Elements in blocks of ``PARTIAL_SUMS``."""
        return self.length - self.length % PARTIAL_SUMS

    # -- pieces

    def blocks(
        self, carried: Sequence[tuple[Type, Value]], body: Callable[..., list[Value]]
    ) -> list[Value]:
        """``body(index, pieces, values)`` for each block; it gives the values it is handed anew."""
        b, length = self.b, self.length
        if isinstance(length, Size):
            return self.free_blocks(carried, body)
        count, remainder = divmod(length, PARTIAL_SUMS)
        values = [value for _, value in carried]
        full = list(self.pieces(PARTIAL_SUMS))
        if self.kernel.is_short:
            for block in range(count):
                values = body(block * PARTIAL_SUMS, full, values)
        elif count:
            loop = b.begin_loop(count, carried)
            index = b.mul(loop.index, PARTIAL_SUMS)
            values = b.end_loop(loop, body(index, full, loop.carried))
        if remainder:
            values = body(length - remainder, list(self.pieces(remainder)), values)
        return values

    def free_blocks(
        self, carried: Sequence[tuple[Type, Value]], body: Callable[..., list[Value]]
    ) -> list[Value]:
        """The same for a free length: blocks, then what is left of vectors."""
        b = self.b
        loop = b.begin_while(str(self.whole // PARTIAL_SUMS), carried)
        index = b.mul(loop.index, PARTIAL_SUMS)
        values = b.end_while(loop, body(index, list(self.pieces(PARTIAL_SUMS)), loop.carried))
        held = [(kind, value) for (kind, _), value in zip(carried, values, strict=True)]
        return self.free_remainder(held, body)

    def free_remainder(
        self, held: Sequence[tuple[Type, Value]], body: Callable[..., list[Value]]
    ) -> list[Value]:
        """Each vector that a row has beyond its blocks; the last one is masked."""
        b, lanes, values = self.b, self.lanes, [value for _, value in held]
        has_masks, remainder = self.target.isa.has_masks, self.length - self.whole
        for start in range(0, PARTIAL_SUMS if has_masks else PARTIAL_SUMS - lanes, lanes):
            here = slice(start // lanes, start // lanes + 1)
            active: int | Value = lanes
            least = start + lanes
            if has_masks:
                count = b.op("sub", b.index, str(remainder), str(start))
                active, least = vectors.first_lanes(b, lanes, count), start + 1
            is_there = b.compare("sge", b.index, str(remainder), str(least))
            compute = partial(body, str(self.whole), [Piece(start, lanes, active)], values[here])
            values[here] = b.if_so(is_there, held[here], compute)
        if has_masks or surely_divides(lanes, self.length):
            return values
        held = [(kind, value) for (kind, _), value in zip(held, values, strict=True)]
        is_left = b.compare("ne", b.index, str(remainder % lanes), "0")
        return b.if_so(is_left, held, partial(self.masked, held, body))

    def masked(
        self, held: Sequence[tuple[Type, Value]], body: Callable[..., list[Value]]
    ) -> list[Value]:
        """A last vector of fewer elements, with that value of those held which is of its place."""
        b, lanes, remainder = self.b, self.lanes, self.length % self.lanes
        piece = Piece(0, lanes, vectors.first_lanes(b, lanes, str(remainder)))
        index = str(self.length - remainder)
        if not held:
            return body(index, [piece], [])
        kind, memory = held[0][0], b.room(f"[{PARTIAL_SUMS} x float], align 64")
        at = [b.at(memory, 4 * lanes * i) for i in range(len(held))]
        for slot, (_, value) in zip(at, held, strict=True):
            b.store(kind, value, slot)
        slot = b.at(memory, str(4 * (self.length - remainder - self.whole)))
        (value,) = body(index, [piece], [b.load(kind, slot)])
        b.store(kind, value, slot)
        return [b.load(kind, slot) for slot in at]

    def pieces(self, count: int) -> Iterator[Piece]:
        """Whole vectors, of which the last may have fewer elements."""
        for start in range(0, count, self.lanes):
            yield Piece(start, self.lanes, min(self.lanes, count - start))

    def load_values(self, index: Value | int, piece: Piece) -> RowValues:
        """The expressions on a piece; those of short rows are the same in every pass."""
        if not self.kernel.is_short:
            return self.new_values(index, piece)
        assert isinstance(index, int)
        place = index + piece.start
        if place not in self.short:
            self.short[place] = self.new_values(index, piece)
        return self.short[place]

    def new_values(self, index: Value | int, piece: Piece) -> RowValues:
        b, strides = self.b, self.kernel.strides
        at = [self.at(p, index, piece, s) for p, s in zip(self.pointers[1:], strides, strict=True)]
        values = self.kernel.values(at, piece.lanes, piece.active, self.invariants.shared)
        for expr in sorted(self.readable, key=str):
            kind = vector(self.lanes, FLOAT)
            values.done[expr] = b.load(kind, self.at(self.saved[expr], index, piece, 4), align=4)
        return values

    def at(self, pointer: Value, index: Value | int, piece: Piece, stride: Dim) -> Value:
        """The index of the first element of a piece."""
        if isinstance(index, int):
            return self.b.at(pointer, (index + piece.start) * stride)
        moved = self.b.at(pointer, self.b.mul(index, stride)) if decide(stride != 0) else pointer
        return self.b.at(moved, piece.start * stride)

    # -- passes

    def reduced(self, stage: Expr, saved: set[Expr], fold: Combination) -> Value:
        """The sum or maximum of an expression over the row."""
        b, kind = self.b, vector(self.lanes, FLOAT)
        width = PARTIAL_SUMS
        if not isinstance(self.length, Size):
            width = min(width, -(-self.length // self.lanes) * self.lanes)
        start = [(kind, fold.neutral(self.lanes))] * (width // self.lanes)

        def body(index: Value | int, group: Sequence[Piece], totals: list[Value]) -> list[Value]:
            new_totals = list(totals)
            for position, piece in enumerate(group):
                values = self.load_values(index, piece)
                value = self.filled(values.value(stage), piece, fold)
                new_totals[position] = fold.combine(self.lanes, new_totals[position], value)
                for expr in sorted(saved, key=str):
                    b.store(kind, values.value(expr), self.at(self.saved[expr], index, piece, 4))
            return new_totals

        totals = self.blocks(start, body)
        count = PARTIAL_SUMS // self.lanes
        totals += [fold.neutral(self.lanes)] * (count - len(totals))
        while count > 1:
            count //= 2
            pairs = zip(totals[:count], totals[count:], strict=True)
            totals = [fold.combine(self.lanes, x, y) for x, y in pairs]
        return across(b, fold, self.lanes, totals[0])

    def filled(self, value: Value, piece: Piece, fold: Combination) -> Value:
        """The neutral element in the lanes beyond the row."""
        if piece.active == piece.lanes:
            return value
        kind = vector(piece.lanes, FLOAT)
        active = piece.active
        if isinstance(active, int):
            active = lanes_of_bits(lane < active for lane in range(piece.lanes))
        return self.b.select(kind, active, value, fold.neutral(piece.lanes))

    def write(self, expression: Expr) -> None:
        """The last pass."""
        nbytes = self.kernel.op.type.dtype.nbytes

        def body(index: Value | int, group: Sequence[Piece], _: list[Value]) -> list[Value]:
            out = self.at(self.pointers[0], index, Piece(0, 1, 1), nbytes)
            for first in range(0, len(group), 4):
                some = group[first : first + 4]
                values = [result(self.b, self.load_values(index, p), expression) for p in some]
                self.store(out, some, values)
            return []

        self.blocks([], body)

    def store(self, out: Value, group: Sequence[Piece], values: Sequence[Value]) -> None:
        b, dtype = self.b, self.kernel.op.type.dtype
        if all(piece.active == piece.lanes for piece in group):
            at = b.at(out, group[0].start * dtype.nbytes)
            moved = [Piece(p.start - group[0].start, p.lanes, p.active) for p in group]
            store_results(b, self.target, dtype, at, dtype.nbytes, moved, values)
            return
        element = ELEMENTS[dtype]
        for piece, value in zip(group, values, strict=True):
            if dtype is not DType.F32:
                value = vectors.narrow(b, piece.lanes, value, element)
            at = b.at(out, piece.start * dtype.nbytes)
            store_partial(b, self.target, element, piece.lanes, piece.active, value, at)


def result(b: Builder, values: RowValues, expression: Expr) -> Value:
    """The lanes of an expression; a constant one is a literal, which packs cannot take."""
    value = values.value(expression)
    return b.freeze(value) if isinstance(value, ConstantValue) else value


def combination(b: Builder, name: str) -> Combination:
    """The combination of a row function; a NaN among numbers may be lost in a maximum."""
    neutral = f32(0.0 if name == "rowsum" else -math.inf)

    def combine(lanes: int, x: Value, y: Value) -> Value:
        kind = vector(lanes, FLOAT)
        if name == "rowsum":
            return b.op("fadd", kind, x, y)
        return b.select(kind, b.compare("ogt", kind, x, y), x, y)

    def kind_of(lanes: int) -> Type:
        return vector(lanes, FLOAT)

    return Combination(kind_of, lambda lanes: splat(kind_of(lanes), neutral), combine)
