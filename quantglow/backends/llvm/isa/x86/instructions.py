"""The instruction set of x86-64, for vectors of 16 (SSE2), 32 (AVX2) or 64 bytes (AVX-512)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.costs import Core, StepCost
from quantglow.backends.llvm.isa.dot import DotProduct, FloatDot, PairDot, WidenedDot, WordDot
from quantglow.backends.llvm.isa.interface import (
    RAISED,
    ByteTable,
    InstructionSet,
    Linking,
    MatrixTiles,
)
from quantglow.backends.llvm.isa.waiting import Waiting, futex_waiting
from quantglow.backends.llvm.isa.x86.dot import NestedDot, SaturatingPairs, VnniDot, VnniWordDot
from quantglow.backends.llvm.isa.x86.linking import X86Linking
from quantglow.backends.llvm.isa.x86.table import PermutedTable, ShuffledTable
from quantglow.backends.llvm.isa.x86.tiles import AmxTiles
from quantglow.errors import BackendError
from quantglow.types import DType

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


class ByteProducts(StrEnum):
    """How four unsigned bytes times four signed bytes are added to an int32 lane."""

    VNNI = "vnni"
    """``vpdpbusd``: one instruction."""
    PAIRS = "pairs"
    """``pmaddubsw``, ``pmaddwd`` by ones, ``paddd`` where the weights prove that no sum of two
    products leaves 16 bits; elsewhere as ``WORDS``."""
    WORDS = "words"
    """Exact on any SSE2: bytes widened to 16 bits, ``pmaddwd`` on even and odd bytes, ``paddd``."""


@dataclass(frozen=True)
class X86(InstructionSet):
    """One level of x86-64."""

    products: ByteProducts = ByteProducts.WORDS
    has_tiles: bool = False

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        plain = StepCost(self.registers, core=core)
        if x is DType.F32:
            return FloatDot(self, plain)
        if x is DType.I16:
            if self.products is ByteProducts.VNNI:
                return VnniWordDot(self, plain)
            return WordDot(self, StepCost(self.registers, 0.75, operands=2, most_vectors=4))
        if x is not DType.U8:
            raise BackendError(f"x86 multiplies unsigned bytes by signed ones, not {x}")
        if self.products is ByteProducts.VNNI:
            return VnniDot(self, plain)
        return WidenedDot(self, self._words_cost, signed=False)

    @property
    def _words_cost(self) -> StepCost:
        """Few channels: then more steps have weights that ``SaturatingPairs.fits``."""
        most = 2 if self.products is ByteProducts.PAIRS else 4
        return StepCost(self.registers, 1.0, 0.5, weights=2, operands=3, most_vectors=most)

    def symmetric_product(self, x: DType, core: Core) -> DotProduct | None:
        if self.products is ByteProducts.VNNI or x is not DType.U8:
            return None
        return NestedDot(self, self._words_cost, signed=False, rounds=self.shuffles_bytes)

    def pair_product(self, core: Core) -> PairDot | None:
        if self.products is not ByteProducts.PAIRS:
            return None
        return SaturatingPairs(self, StepCost(self.registers, core=core))

    def word_products(self, b: Builder, x: Value, y: Value) -> Value:
        name, nbytes = f"llvm.x86.{WORD_PRODUCTS[self.vector_nbytes]}", self.vector_nbytes
        words = vector(nbytes // 2, "i16")
        return b.call(name, vector(nbytes // 4, "i32"), (words, x), (words, y))

    def keep(self, b: Builder, kind: str, value: Value) -> Value:
        """An identity that LLVM cannot look through."""
        return b.emit(f'call {kind} asm "", "=x,0"({kind} {value})')

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
        ints = vector(nbytes // 4, "i32")
        return b.call(name, vector(nbytes // 2, "i16"), (ints, x), (ints, y))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        name = PACKED_BYTES[self.vector_nbytes].format("s" if signed else "u")
        words = vector(self.vector_nbytes // 2, "i16")
        result = vector(self.vector_nbytes, "i8")
        return b.call(f"llvm.x86.{name}", result, (words, x), (words, y))

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``cvtps2dq``: the minimum for all that int32 does not hold."""
        if lanes == 1:
            four = b.emit(f"insertelement <4 x float> zeroinitializer, float {value}, i32 0")
            return b.call("llvm.x86.sse.cvtss2si", "i32", ("<4 x float>", four))
        source, result = vector(lanes, "float"), vector(lanes, "i32")
        arguments = [(source, value)]
        if lanes == 16:
            arguments += [(result, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]
        return b.call(f"llvm.x86.{ROUNDED[lanes]}", result, *arguments)

    def nearest_within(self, b: Builder, values: Value, bound: Value) -> Value | None:
        """``vrangeps`` of AVX-512."""
        if self.vector_nbytes != 64:
            return None
        kind = "<16 x float>"
        operands = ((kind, values), (kind, bound), ("i32", str(LESSER_MAGNITUDE)))
        rest = ((kind, "zeroinitializer"), ("i16", "-1"), ("i32", "4"))
        return b.call("llvm.x86.avx512.mask.range.ps.512", kind, *operands, *rest)

    def raised_bytes(self, b: Builder, data: Value, places: Sequence[int]) -> Value | None:
        """``vpshufb`` of AVX-512 under a mask, within each 128 bits."""
        lanes, group = len(places), self.group_nbytes
        if lanes != 16 or any(place // group != 4 * i // group for i, place in enumerate(places)):
            return None
        kind = vector(4 * lanes, "i8")
        order = [f"i8 {place % group}, i8 0, i8 0, i8 0" for place in places]
        shuffled = b.call(
            "llvm.x86.avx512.pshuf.b.512", kind, (kind, data), (kind, f"<{', '.join(order)}>")
        )
        is_byte = f"<{', '.join(['i1 1, i1 0, i1 0, i1 0'] * lanes)}>"
        raised = f"<{', '.join(f'i8 {byte}' for byte in struct.pack('<f', RAISED) * lanes)}>"
        return b.cast("bitcast", kind, b.select(kind, is_byte, shuffled, raised), "<16 x float>")

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

    def unknown(self, b: Builder, kind: str, value: Value) -> Value:
        letter = self._any_register
        return b.emit(f'call {kind} asm sideeffect "", "={letter},0"({kind} {value})')

    def use(self, b: Builder, kind: str, value: Value) -> None:
        b.do(f'call void asm sideeffect "", "{self._any_register}"({kind} {value})')

    # -- system

    @property
    def waiting(self) -> Waiting:
        pause, clock = "@llvm.x86.sse2.pause()", "@llvm.readcyclecounter()"
        declarations = f"declare void {pause}\ndeclare i64 {clock}\n"
        return futex_waiting(
            FUTEX, f"call void {pause}", f"call i64 {clock}", CLOCK_HERTZ, declarations
        )

    @property
    def linking(self) -> Linking | None:
        return X86Linking()
