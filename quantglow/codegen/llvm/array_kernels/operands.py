"""Vectors, indices and ranges of all array kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, first_lanes
from quantglow.codegen.llvm.values import FLOAT, Operand, Type, Value, vector

FLOAT_NBYTES = 4
POINTER_NBYTES = 8


@dataclass(frozen=True)
class Vectors:
    """Vectors of float32 of a target, under construction by ``b``."""

    b: Builder
    target: Target

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.target.f32_lanes

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return self.target.vector_nbytes

    @property
    def kind(self) -> Type:
        """The type of a vector."""
        return vector(self.lanes, FLOAT)

    def multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        """``x * y + z``, rounded once where that is an instruction."""
        b, kind = self.b, self.kind
        if self.target.isa.has_fma:
            name = f"llvm.fma.{vector(self.lanes, FLOAT).suffix}"
            return b.call(name, kind, (kind, x), (kind, y), (kind, z))
        return b.op("fadd", kind, b.op("fmul", kind, x, y), z)

    def number(self, pointer: Value) -> Value:
        """A float32 of memory in all lanes."""
        return self.b.broadcast(self.lanes, FLOAT, self.b.load(FLOAT, pointer, align=4))

    def bounded(self, value: Value, low: Value, high: Value) -> Value:
        """A vector within bounds, which are vectors; NaN stays."""
        b, kind = self.b, self.kind
        value = b.select(kind, b.compare("olt", kind, value, low), low, value)
        return b.select(kind, b.compare("ogt", kind, value, high), high, value)

    def within(self, left: Value) -> Piece:
        """The first ``left`` lanes of a vector, an index that may exceed their number."""
        return Piece(0, self.lanes, first_lanes(self.b, self.lanes, left))

    def each(self, begin: Operand, end: Operand, body: Callable[[Value, Piece], None]) -> None:
        """Emit ``body`` for the numbers from ``begin`` to ``end``, with the index of the first and
        which are there: for whole vectors, then for the rest.
        """
        b = self.b
        count = b.op("sub", b.index, end, begin)
        whole, remainder = b.divide(count, self.lanes)
        last = b.add(begin, b.mul(whole, self.lanes))
        with b.loop(begin, last, self.lanes) as index:
            body(index, Piece(0, self.lanes, self.lanes))
        with b.when(b.compare("ne", b.index, remainder, "0")):
            body(last, self.within(remainder))


def indices(b: Builder, pointer: Value, count: int) -> list[Value]:
    """The first ``count`` indices of an int64 array."""
    return [b.load_index(b.at(pointer, POINTER_NBYTES * place)) for place in range(count)]


def smaller(b: Builder, x: Value, y: Operand) -> Value:
    """The smaller of two indices."""
    return b.select(b.index, b.compare("slt", b.index, x, y), x, y)
