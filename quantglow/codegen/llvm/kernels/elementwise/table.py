"""``Table``: any function of integers; of bytes by look-up in registers where the target can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.vector.access import load_strided, store_strided
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis, Nest, collapse_axes
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import I8, Type, Value, splat, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Table
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import Size, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

SCALAR_STEP = 8
"""Look-ups before their stores, where every one is a load of its own."""


@emits(Table)
def emit_table(step: Compute, target: Target) -> KernelCall:
    """``table[x - lowest]`` for every integer, element by element, so that it may run in place."""
    op = step.op
    assert isinstance(op, Table)
    source, table = step.inputs
    axes = collapse_axes(op.type.shape, (step.output, source))
    lookup = _lookup(op, target, axes[-1])
    nest = Nest(tuple(axes[:-1]), axes[-1], lookup.lanes, lookup.unroll)

    def text() -> str:
        b = Builder(index=target.isa.index)
        *pointers, entries = b.kernel(3)
        lookup.prepare(b, entries)
        nest.emit(b, target, pointers, lambda at, group: lookup.emit(b, at, group, entries))
        return b.finish()

    constant = lookup.entries()
    views = (step.output, source, table if constant is None else constant)
    work, facts = likely(op.type.size) / 4, type(lookup).__name__
    return KernelCall(text, views, nest.items, work, "table", facts)


@dataclass
class _Lookup:
    """One load for each element: any result type."""

    op: Table
    target: Target
    row: LoopAxis
    lanes: int = SCALAR_STEP
    unroll: int = 1

    def entries(self) -> Array | None:
        """The table in the form the code wants, or None for the operand itself."""
        return None

    def prepare(self, b: Builder, entries: Value) -> None:
        """Load what stays in registers."""

    def emit(
        self, b: Builder, pointers: Sequence[Value], group: Sequence[Piece], entries: Value
    ) -> None:
        for piece in group:
            self.one_by_one(b, pointers, piece, entries)

    def one_by_one(
        self, b: Builder, pointers: Sequence[Value], piece: Piece, entries: Value
    ) -> None:
        element, itemsize = ELEMENTS[self.op.out.dtype], self.op.out.dtype.nbytes
        code_type = ELEMENTS[self.op.x.type.dtype]
        lowest = self.op.x.type.dtype.limits[0]
        first = b.at(entries, -lowest * itemsize)
        extend = "sext" if lowest else "zext"
        offsets = [(piece.start + lane) for lane in range(piece.count)]
        results = []
        for index in offsets:
            code = b.load(code_type, b.at(pointers[1], index * self.row.strides[1]))
            code = b.as_index(code_type, code, extend)
            results.append(b.load(element, b.at(first, b.mul(code, itemsize))))
        for index, value in zip(offsets, results, strict=True):
            b.store(element, value, b.at(pointers[0], index * self.row.strides[0]))


@dataclass
class _VectorLookup(_Lookup):
    """Whole vectors of bytes, by ``look_up``."""

    unroll: int = 2
    values: Array = field(default_factory=lambda: np.zeros(256, np.uint8))

    def __post_init__(self) -> None:
        self.lanes = self.target.vector_nbytes

    def entries(self) -> Array | None:
        return self.values

    def emit(
        self, b: Builder, pointers: Sequence[Value], group: Sequence[Piece], entries: Value
    ) -> None:
        wide = [p for p in group if p.lanes == self.lanes]
        results = []
        for piece in wide:
            codes = load_strided(b, I8, 1, pointers[1], self.row.strides[1], piece)
            results.append(self.look_up(b, codes))
        for piece, value in zip(wide, results, strict=True):
            store_strided(b, I8, 1, pointers[0], self.row.strides[0], piece, value)
        for piece in group:
            if piece.lanes != self.lanes:
                self.one_by_one(b, pointers, piece, self._plain(b, entries))

    def _plain(self, b: Builder, entries: Value) -> Value:
        """The address of the plain table."""
        return entries

    def look_up(self, b: Builder, codes: Value) -> Value:
        raise NotImplementedError

    @property
    def kind(self) -> Type:
        return vector(self.lanes, I8)


@dataclass
class _InRegisters(_VectorLookup):
    """Look-up by instructions of the target."""

    registers: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        byte_table = self.target.isa.byte_table
        assert byte_table is not None
        self.table = byte_table
        self.unroll = byte_table.unroll

    def entries(self) -> Array | None:
        return self.table.packed(self.values)

    def prepare(self, b: Builder, entries: Value) -> None:
        self.registers = self.table.load(b, entries)

    def _plain(self, b: Builder, entries: Value) -> Value:
        return b.at(entries, self.table.entries_at)

    def look_up(self, b: Builder, codes: Value) -> Value:
        signed = self.op.x.type.dtype is DType.I8
        return self.table.look_up(b, self.registers, codes, signed)


@dataclass
class _Flip(_VectorLookup):
    """int8 stored as uint8 or back: the top bit flips."""

    unroll: int = 4

    def look_up(self, b: Builder, codes: Value) -> Value:
        return b.op("xor", self.kind, codes, splat(self.kind, "-128"))

    def one_by_one(
        self, b: Builder, pointers: Sequence[Value], piece: Piece, entries: Value
    ) -> None:
        codes = load_strided(b, I8, 1, pointers[1], self.row.strides[1], piece)
        kind = vector(piece.lanes, I8)
        flipped = b.op("xor", kind, codes, splat(kind, "-128"))
        store_strided(b, I8, 1, pointers[0], self.row.strides[0], piece, flipped)


def _lookup(op: Table, target: Target, row: LoopAxis) -> _Lookup:
    """The best way to look up on a target."""
    constant = op.table
    bytes_only = op.x.type.dtype.nbytes == op.out.dtype.nbytes == 1
    if not isinstance(constant, Constant) or not bytes_only:
        return _Lookup(op, target, row)
    values = constant.value.view(np.uint8)
    codes = (np.arange(256) + op.x.type.dtype.limits[0]).astype(np.uint8)
    if np.array_equal(values, codes ^ 0x80):
        return _Flip(op, target, row, values=values)
    narrow = (
        not isinstance(row.size, Size)
        and row.size < target.vector_nbytes
        and not target.isa.has_masks
    )
    if target.isa.byte_table is None or narrow:
        return _Lookup(op, target, row)
    return _InRegisters(op, target, row, values=values)
