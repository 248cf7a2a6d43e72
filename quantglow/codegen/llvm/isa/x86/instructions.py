"""Instruction set of x86-64 with vectors of 16, 32 or 64 bytes; look-up in tables; relocations."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import DotProduct, FloatDot, PairDot
from quantglow.codegen.llvm.isa.interface import (
    RAISED,
    ByteTable,
    InstructionSet,
    Linking,
    MatrixTiles,
)
from quantglow.codegen.llvm.isa.waiting import WaitInstructions, futex_waiting
from quantglow.codegen.llvm.isa.x86.dot import AmxTiles
from quantglow.codegen.llvm.isa.x86.products import BYTE_PRODUCTS, DotProducts, X86ByteProducts
from quantglow.codegen.llvm.values import (
    FLOAT,
    I8,
    I16,
    I32,
    Operand,
    Type,
    Value,
    splat,
    vector,
    zero,
)
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError

DISTANCE, CALL = 2, 4
"""R_X86_64_PC32 and R_X86_64_PLT32: 32 bits, relative to their own place."""
JUMP = bytes.fromhex("ff2500000000")
"""``jmp [rip]``: continues at the address in the eight bytes behind it."""

WORD_PRODUCTS = {16: "sse2.pmadd.wd", 32: "avx2.pmadd.wd", 64: "avx512.pmaddw.d.512"}
PACKED_WORDS = {16: "sse2.packssdw.128", 32: "avx2.packssdw", 64: "avx512.packssdw.512"}
PACKED_BYTES = {16: "sse2.pack{}swb.128", 32: "avx2.pack{}swb", 64: "avx512.pack{}swb.512"}
ROUNDED = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}
"""Intrinsics below ``llvm.x86``, by bytes of a vector; the last ones by float32 lanes."""

LESSER_MAGNITUDE = 2
"""Choice of ``vrangeps``: the operand of the lesser magnitude, with the sign of the first."""

FUTEX = 202
CLOCK_HERTZ = 3e9
"""About the rate of the time-stamp counter, which is steady since 2008."""


class X86Linking:
    """Position-independent code of the small code model."""

    machine = 62

    def is_call(self, kind: int) -> bool:
        return kind == CALL

    def patch(self, data: bytearray, at: int, kind: int, target: int) -> bool:
        if kind not in (DISTANCE, CALL):
            return False
        data[at : at + 4] = (target - at).to_bytes(4, "little", signed=True)
        return True

    def stub(self, address: int) -> bytes:
        return JUMP + address.to_bytes(8, "little")

    def publish(self, address: int, nbytes: int) -> bool:
        """Processors see to it themselves."""
        return True


def upper(b: Builder, kind: Type, codes: Value, signed: bool) -> Value:
    """The lanes whose codes index the second half of the table."""
    return b.compare("sge" if signed else "slt", kind, codes, splat(kind, "0"))


class PermutedTable:
    """AVX-512 VBMI: two permutations of 128 entries each."""

    unroll = 2
    entries_at = 0

    def packed(self, values: Array) -> Array:
        return values

    def load(self, b: Builder, entries: Value) -> list[Value]:
        return [b.load(vector(64, I8), b.at(entries, 64 * i)) for i in range(4)]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        name, kind = "llvm.x86.avx512.vpermi2var.qi.512", vector(64, I8)
        low, high = (
            b.call(name, kind, (kind, table[i]), (kind, codes), (kind, table[i + 1]))
            for i in (0, 2)
        )
        return b.select(kind, upper(b, kind, codes, signed), high, low)


class ShuffledTable:
    """AVX2 and AVX-512: byte shuffles in rows of 16 entries.

    A shuffle yields zero for negative indices.  Row k is stored XORed with row k - 1, and indices
    fall by 16 from row to row: an index contributes until it is negative, and the XOR of what it
    contributed is its entry.
    """

    unroll = 1
    entries_at = 256

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def packed(self, values: Array) -> Array:
        halves = values.reshape(2, 8, 16)
        steps = np.concatenate([halves[:, :1], halves[:, 1:] ^ halves[:, :-1]], axis=1)
        return np.concatenate([steps.reshape(-1), values])

    def load(self, b: Builder, entries: Value) -> list[Value]:
        order = list(range(16)) * (self.lanes // 16)
        rows = [b.load(vector(16, I8), b.at(entries, 16 * i)) for i in range(16)]
        return [b.shuffle(vector(16, I8), row, "poison", order) for row in rows]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        kind = vector(self.lanes, I8)
        flipped = b.op("xor", kind, codes, splat(kind, "-128"))
        low = self._half(b, flipped if signed else codes, table[:8])
        high = self._half(b, codes if signed else flipped, table[8:])
        return b.select(kind, upper(b, kind, codes, signed), high, low)

    def _half(self, b: Builder, index: Value, rows: Sequence[Value]) -> Value:
        """Entries of the indices that are not negative."""
        avx2, avx512 = "llvm.x86.avx2.pshuf.b", "llvm.x86.avx512.pshuf.b.512"
        name, kind = avx2 if self.lanes == 32 else avx512, vector(self.lanes, I8)
        entries = b.call(name, kind, (kind, rows[0]), (kind, index))
        for row in rows[1:]:
            index = b.op("sub", kind, index, splat(kind, "16"))
            entries = b.op("xor", kind, entries, b.call(name, kind, (kind, row), (kind, index)))
        return entries


@dataclass(frozen=True)
class X86(InstructionSet):
    """One level of x86-64."""

    products: X86ByteProducts = X86ByteProducts.WORDS
    has_tiles: bool = False

    # -- products

    @property
    def _dots(self) -> DotProducts:
        return BYTE_PRODUCTS[self.products]

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.F32:
            return FloatDot(self, StepCost(self.registers, core=core))
        if x is DType.I16:
            return self._dots.words(self, core)
        if x is not DType.U8:
            raise BackendError(f"x86 multiplies unsigned bytes by signed ones, not {x}")
        return self._dots.unsigned(self, core)

    def symmetric_product(self, x: DType, core: Core) -> DotProduct | None:
        symmetric = self._dots.symmetric
        return symmetric(self, core) if symmetric and x is DType.U8 else None

    def pair_product(self, core: Core) -> PairDot | None:
        pairs = self._dots.pairs
        return pairs(self, core) if pairs else None

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        name, nbytes = f"llvm.x86.{WORD_PRODUCTS[self.vector_nbytes]}", self.vector_nbytes
        words = vector(nbytes // 2, I16)
        return b.call(name, vector(nbytes // 4, I32), (words, x), (words, y))

    def keep(self, b: Builder, kind: Type, value: Value) -> Value:
        """An identity that LLVM cannot look through."""
        return b.in_register(value, "x")

    @property
    def tiles(self) -> MatrixTiles | None:
        return AmxTiles() if self.has_tiles else None

    # -- results

    @property
    def group_nbytes(self) -> int:
        """Packs work within each 128 bits of their operands."""
        return 16

    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        name, nbytes = f"llvm.x86.{PACKED_WORDS[self.vector_nbytes]}", self.vector_nbytes
        ints = vector(nbytes // 4, I32)
        return b.call(name, vector(nbytes // 2, I16), (ints, x), (ints, y))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        name = PACKED_BYTES[self.vector_nbytes].format("s" if signed else "u")
        words = vector(self.vector_nbytes // 2, I16)
        result = vector(self.vector_nbytes, I8)
        return b.call(f"llvm.x86.{name}", result, (words, x), (words, y))

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``cvtps2dq``: the minimum for all that int32 does not hold."""
        if lanes == 1:
            four = b.insert(zero(vector(4, FLOAT)), value, 0)
            return b.call("llvm.x86.sse.cvtss2si", I32, (vector(4, FLOAT), four))
        source, result = vector(lanes, FLOAT), vector(lanes, I32)
        arguments: list[tuple[Type, Operand]] = [(source, value)]
        if lanes == 16:
            arguments += [(result, "zeroinitializer"), (I16, "-1"), (I32, "4")]
        return b.call(f"llvm.x86.{ROUNDED[lanes]}", result, *arguments)

    def nearest_within(self, b: Builder, values: Value, bound: Value) -> Value | None:
        """``vrangeps`` of AVX-512."""
        if self.vector_nbytes != 64:
            return None
        kind = vector(16, FLOAT)
        operands = ((kind, values), (kind, bound), (I32, str(LESSER_MAGNITUDE)))
        controls = ((kind, "zeroinitializer"), (I16, "-1"), (I32, "4"))
        return b.call("llvm.x86.avx512.mask.range.ps.512", kind, *operands, *controls)

    def raised_bytes(self, b: Builder, data: Value, places: Sequence[int]) -> Value | None:
        """``vpshufb`` of AVX-512 under a mask, within each 128 bits."""
        lanes, group = len(places), self.group_nbytes
        if lanes != 16 or any(place // group != 4 * i // group for i, place in enumerate(places)):
            return None
        kind = vector(4 * lanes, I8)
        order = [f"i8 {place % group}, i8 0, i8 0, i8 0" for place in places]
        shuffled = b.call(
            "llvm.x86.avx512.pshuf.b.512", kind, (kind, data), (kind, f"<{', '.join(order)}>")
        )
        is_byte = f"<{', '.join(['i1 1, i1 0, i1 0, i1 0'] * lanes)}>"
        raised = f"<{', '.join(f'i8 {byte}' for byte in struct.pack('<f', RAISED) * lanes)}>"
        return b.cast("bitcast", kind, b.select(kind, is_byte, shuffled, raised), vector(16, FLOAT))

    # -- look-up

    @property
    def byte_table(self) -> ByteTable | None:
        if self.permutes_bytes:
            return PermutedTable()
        return None if self.vector_nbytes == 16 else ShuffledTable(self.vector_nbytes)

    # -- measuring

    @property
    def _any_register(self) -> str:
        """The assembler's letter for any vector register; ``x`` means the first sixteen."""
        return "v" if self.registers == 32 else "x"

    def unknown(self, b: Builder, kind: Type, value: Value) -> Value:
        letter = self._any_register
        return b.in_register(value, letter, is_used=True)

    def use(self, b: Builder, kind: Type, value: Value) -> None:
        b.do(f'call void asm sideeffect "", "{self._any_register}"({kind} {value})')

    # -- system

    @property
    def waiting(self) -> WaitInstructions:
        pause, clock = "@llvm.x86.sse2.pause()", "@llvm.readcyclecounter()"
        declarations = f"declare void {pause}\ndeclare i64 {clock}\n"
        return futex_waiting(
            FUTEX, f"call void {pause}", f"call i64 {clock}", CLOCK_HERTZ, declarations
        )

    @property
    def linking(self) -> Linking | None:
        return X86Linking()
