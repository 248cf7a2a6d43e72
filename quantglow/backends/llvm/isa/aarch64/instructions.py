"""The instruction set of AArch64: 32 registers of 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.isa.aarch64.dot import (
    LaneFloatDot,
    ShiftedDot,
    SignedBlocks,
    SignedDot,
    SignedPairs,
    UnsignedDot,
)
from quantglow.backends.llvm.isa.aarch64.linking import AArch64Linking
from quantglow.backends.llvm.isa.aarch64.table import LookUpTable
from quantglow.backends.llvm.isa.costs import Core, StepCost
from quantglow.backends.llvm.isa.dot import BlockDot, DotProduct, WidenedDot, WordDot
from quantglow.backends.llvm.isa.interface import (
    ByteTable,
    InstructionSet,
    Linking,
)
from quantglow.backends.llvm.isa.waiting import Waiting, futex_waiting
from quantglow.types import DType

FUTEX = 98

ISB = "@llvm.aarch64.isb"
CLOCK_HERTZ = 2.0**30
CLOCK = """
define internal i64 @clock() nounwind {
  %ticks = call i64 @llvm.readcyclecounter()
  %read = call i64 @llvm.read_volatile_register.i64(metadata !0)
  %rate = call i64 @llvm.umax.i64(i64 %read, i64 1)
  %scale = udiv i64 1073741824, %rate
  %time = mul i64 %ticks, %scale
  ret i64 %time
}
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"CNTFRQ_EL0"}
"""
"""The counter of the generic timer, whose rate of 1 MHz to 1 GHz CNTFRQ_EL0 tells, scaled to about
2**30 ticks in a second."""


class ByteProducts(StrEnum):
    """How four bytes times four signed bytes are added to an int32 lane."""

    WORDS = "words"
    """Exact on any processor: bytes widened to 16 bits, ``smull`` and ``addp``."""
    DOT = "dot"
    """``sdot``: one instruction, for signed bytes."""
    MIXED = "mixed"
    """Also ``usdot``, for unsigned bytes, and products of matrices."""


@dataclass(frozen=True)
class AArch64(InstructionSet):
    """One level of AArch64."""

    products: ByteProducts = ByteProducts.WORDS

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        lanes = StepCost(self.registers, operands=0, rows=1, loads=0.25, core=core)
        if x is DType.F32:
            return LaneFloatDot(self, lanes)
        if x is DType.I16:
            return WordDot(self, StepCost(self.registers, 1.5, operands=3, core=core))
        if self.products is ByteProducts.WORDS:
            cost = StepCost(self.registers, 3.0, 1.0, weights=2, operands=5, core=core)
            return WidenedDot(self, cost, signed=x is not DType.U8)
        if x is not DType.U8:
            return SignedDot(self, lanes)
        if self.products is ByteProducts.MIXED:
            return UnsignedDot(self, lanes)
        return ShiftedDot(self, StepCost(self.registers, 1.5, operands=4, core=core))

    def block_product(self, x: DType, core: Core) -> BlockDot | None:
        if self.products is not ByteProducts.MIXED or x is not DType.I8:
            return None
        cost = StepCost(self.registers, 0.25, 0.1, 2, 0, rows=1, loads=0.25, together=2, core=core)
        return SignedBlocks(self, cost)

    def symmetric_product(self, x: DType, core: Core) -> DotProduct | None:
        if self.products is not ByteProducts.WORDS or x is not DType.I8:
            return None
        cost = StepCost(self.registers, 2.0, 1.0, operands=4, loads=2.0, core=core)
        return SignedPairs(self, cost)

    def word_products(self, b: Builder, x: Value, y: Value) -> Value:
        """``smull`` of both halves, then sums of neighbours."""
        halves, ints = "<4 x i16>", "<4 x i32>"
        products = []
        for first in (0, 4):
            order = range(first, first + 4)
            left, right = (b.shuffle("<8 x i16>", v, "poison", order) for v in (x, y))
            name = "llvm.aarch64.neon.smull.v4i32"
            products.append((ints, b.call(name, ints, (halves, left), (halves, right))))
        return b.call("llvm.aarch64.neon.addp.v4i32", ints, *products)

    def keep(self, b: Builder, kind: str, value: Value) -> Value:
        """An identity that LLVM cannot look through."""
        return b.emit(f'call {kind} asm "", "=w,0"({kind} {value})')

    # -- results

    @property
    def group_nbytes(self) -> int:
        """Packs leave one operand after the other."""
        return self.vector_nbytes

    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        return self._narrowed(b, "sqxtn.v4i16", ("<4 x i32>", "<4 x i16>"), (x, y))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        name = "sqxtn.v8i8" if signed else "sqxtun.v8i8"
        return self._narrowed(b, name, ("<8 x i16>", "<8 x i8>"), (x, y))

    def _narrowed(
        self, b: Builder, name: str, kinds: tuple[str, str], values: Sequence[Value]
    ) -> Value:
        """Two vectors saturated to elements of half the size, one after the other."""
        wide, half = kinds
        x, y = (b.call(f"llvm.aarch64.neon.{name}", half, (wide, value)) for value in values)
        return b.shuffle(half, x, y, range(2 * int(half[1])))

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvtns``, which saturates, and the minimum for NaN."""
        kind, ints = vector(lanes, "float"), vector(lanes, "i32")
        rounded = self.round_number(b, lanes, value)
        is_number = b.compare("ord", kind, value, value)
        return b.select(ints, is_number, rounded, splat(ints, str(-(2**31))))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvtns``, four lanes at a time."""
        name = "llvm.aarch64.neon.fcvtns"
        if lanes == 1:
            return b.call(f"{name}.i32.f32", "i32", ("float", value))
        width = min(lanes, self.vector_nbytes // 4)
        kind, ints = vector(width, "float"), vector(width, "i32")
        parts = [value]
        if lanes > width:
            whole = vector(lanes, "float")
            starts = range(0, lanes, width)
            parts = [b.shuffle(whole, value, "poison", range(i, i + width)) for i in starts]
        parts = [b.call(f"{name}.v{width}i32.v{width}f32", ints, (kind, part)) for part in parts]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [b.shuffle(vector(width, "i32"), x, y, range(2 * width)) for x, y in pairs]
            width *= 2
        return parts[0]

    # -- look-up

    @property
    def byte_table(self) -> ByteTable | None:
        return LookUpTable()

    # -- measuring

    def unknown(self, b: Builder, kind: str, value: Value) -> Value:
        return b.emit(f'call {kind} asm sideeffect "", "=w,0"({kind} {value})')

    def use(self, b: Builder, kind: str, value: Value) -> None:
        b.do(f'call void asm sideeffect "", "w"({kind} {value})')

    # -- system

    @property
    def waiting(self) -> Waiting:
        """``isb`` takes about as long as x86's ``pause``; ``yield`` does nothing on most cores."""
        pause, clock = f"call void {ISB}(i32 15)", "call i64 @clock()"
        declarations = f"declare void {ISB}(i32)\n{CLOCK}"
        return futex_waiting(FUTEX, pause, clock, CLOCK_HERTZ, declarations)

    @property
    def linking(self) -> Linking | None:
        return AArch64Linking()
