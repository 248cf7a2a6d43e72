"""Dot products of x86-64: VNNI, pairs of bytes (AVX2), words (SSE2), and AMX tiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct, PairDot, WidenedDot, WordDot
from quantglow.codegen.llvm.isa.x86.features import octets
from quantglow.codegen.llvm.values import I8, I64, PTR, Operand, Value, splat
from quantglow.ir.symbolic.size import Dim
from quantglow.support.arrays import Array

FLIPPED = 1 << 15
"""Difference between a word and the same with its sign bit flipped."""

CONFIG_NBYTES, WIDTHS_AT, HEIGHTS_AT = 64, 16, 48
"""Operand of ``ldtilecfg`` (palette 1): 16-bit widths in bytes, 8-bit numbers of rows."""

REQUEST = octets("B8 9E000000 BF 23100000 BE 12000000 0F05 C3")
"""``mov eax, 158; mov edi, 0x1023; mov esi, 18; syscall; ret``: see ``features.request_tiles``."""


class VnniDot(DotProduct):
    """Four unsigned bytes times four signed ones in one instruction, ``vpdpbusd``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        # VPDPBUSD (Intel SDM, volume 2): the four products of a lane are added to its int32 at
        # once, which wraps around; VPDPBUSDS would saturate.  So sums do not depend on the order of
        # steps.
        name = f"llvm.x86.avx512.vpdpbusd.{self.isa.vector_nbytes * 8}"
        kind, x, w = self.bytes_kind, operand[0], weights[0]
        return b.call(name, self.kind, (self.kind, sums), (kind, x), (kind, w))


class VnniWordDot(WordDot):
    """Two words times two words in one instruction, ``vpdpwssd``."""

    def added(self, b: Builder, sums: Value, x: Operand, w: Value) -> Value:
        # VPDPWSSD (Intel SDM, volume 2) wraps around, too; VPDPWSSDS would saturate.
        name, kind = f"llvm.x86.avx512.vpdpwssd.{self.isa.vector_nbytes * 8}", self.words_kind
        return b.call(name, self.kind, (self.kind, sums), (kind, x), (kind, w))


class SaturatingPairs(PairDot):
    """``pmaddubsw``, whose sums of two products saturate at 16 bits, then ``pmaddwd`` by ones."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        kind, x, w = self.bytes_kind, operand[0], weights[0]
        # PMADDUBSW (Intel SDM, volume 2) saturates its sums of two products, so it is exact only
        # for weights that ``fits`` has proved.  PMADDWD by ones then adds neighbors in 32 bits.
        pairs = b.call("llvm.x86.avx2.pmadd.ub.sw", self.words_kind, (kind, x), (kind, w))
        quads = self.isa.word_products(b, pairs, "splat (i16 1)")
        return self.isa.keep(b, self.kind, b.op("add", self.kind, sums, quads))

    def fits(self, quads: Array) -> Array:
        """The extremes of ``a0 * w0 + a1 * w1`` with ``a`` in [0, 255] take 255 for every weight of
        one sign: ``255 * 128 = 32640`` fits, ``255 * 129`` does not, and as much below zero."""
        first, second = quads[..., 0::2], quads[..., 1::2]
        above = np.add(np.maximum(first, 0), np.maximum(second, 0), dtype=np.int16)
        below = np.add(np.minimum(first, 0), np.minimum(second, 0), dtype=np.int16)
        return np.asarray(((above <= 128) & (below >= -128)).all(axis=-1), np.bool_)


@dataclass(frozen=True)
class NestedDot(WidenedDot):
    """Four byte products by way of 16 bits, with weights in words as they are stored, two in each.

    For neighboring activations ``a`` and ``b`` and their weights ``v`` and ``w``, all above -128,
    a word holds ``n = w - 256 v``, and ``v`` is ``n / -256``, rounded: one instruction for all
    pixels of a tile, where bytes that are widened take two.  Since ``256 b + a`` may leave a word,
    its sign is flipped::

        (256 b + a - 2**15) * v + b * n = a * v + b * w - 2**15 * v

    Every step is exact in int32 that wraps around.  Where only ``a`` has a weight, ``a * v`` is
    all.

    ``rounds``: whether ``pmulhrsw`` is there, ``round(x * y / 2**15)``.
    """

    rounds: bool

    @property
    def exceeds(self) -> bool:
        return True

    def excess(self, quads: Array, positions: Collection[int] = range(STEP_NBYTES)) -> Array:
        factor = -FLIPPED if any(place % 2 for place in positions) else 0
        return np.asarray(quads[..., 0::2].sum(axis=-1, dtype=np.int64) * factor)

    def select_parts(
        self, parts: tuple[Value, ...], positions: Collection[int]
    ) -> tuple[Value, ...]:
        """The last part is what even elements need that are alone."""
        return parts[:-1] if any(place % 2 for place in positions) else parts[-1:]

    def to_operand(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        kind = self.words_kind
        words = b.cast("bitcast", self.bytes_kind, quads, kind)
        flipped = b.op("xor", kind, words, splat(kind, str(-FLIPPED)))
        odd = b.op("lshr", kind, words, splat(kind, "8"))
        return flipped, odd, b.op("and", kind, words, splat(kind, "255"))

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        return super().accumulate(b, sums, operand[:2], weights[:2])

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        kind = self.words_kind
        nested = b.load(kind, b.at(pointer, offset), align=4)
        if self.rounds:
            factor = (kind, splat(kind, "-128"))
            even = b.call("llvm.x86.avx2.pmul.hr.sw", kind, (kind, nested), factor)
        else:
            raised = b.op("sub", kind, splat(kind, "128"), nested)
            even = b.op("ashr", kind, raised, splat(kind, "8"))
        return even, nested, even

    def pack(self, quads: Array) -> Array:
        first, second = quads[..., 0::2].astype(np.int16), quads[..., 1::2]
        return np.ascontiguousarray(second - 256 * first)


class AmxTiles:
    """The tile registers of AMX-INT8."""

    # Palette 1 (Intel SDM, volume 1, on AMX): eight registers of sixteen rows of 64 bytes.
    registers = 8
    rows = 16
    row_nbytes = 64

    def configure(self, b: Builder, sizes: Sequence[tuple[int, int]]) -> None:
        values = ", ".join(f"i8 {value}" for value in self._configuration(sizes))
        b.declarations["tiles"] = (
            f"@tiles = private unnamed_addr constant [{CONFIG_NBYTES} x i8] [{values}], "
            f"align {CONFIG_NBYTES}"
        )
        b.do_call("llvm.x86.ldtilecfg", (PTR, "@tiles"))

    def _configuration(self, sizes: Sequence[tuple[int, int]]) -> Array:
        configuration = np.zeros(CONFIG_NBYTES, np.uint8)
        configuration[0] = 1
        widths = configuration[WIDTHS_AT : WIDTHS_AT + 2 * self.registers].view("<u2")
        heights = configuration[HEIGHTS_AT : HEIGHTS_AT + self.registers]
        heights[:], widths[:] = np.transpose(sizes)
        return configuration

    def release(self, b: Builder) -> None:
        b.do_call("llvm.x86.tilerelease")

    def permission(self, name: str, triple: str) -> str:
        """Linux wants to be asked once in each process; to ask again does no harm."""
        if "linux" not in triple:
            return ""
        return f"define internal i64 @{name}() nounwind {REQUEST} {{\n  unreachable\n}}\n"

    def load(self, b: Builder, register: int, pointer: Value, pitch: Dim) -> None:
        self._move(b, "tileloadd64", register, pointer, pitch)

    def load_past_first_cache(self, b: Builder, register: int, pointer: Value, pitch: Dim) -> None:
        self._move(b, "tileloaddt164", register, pointer, pitch)

    def store(self, b: Builder, register: int, pointer: Value, pitch: int) -> None:
        self._move(b, "tilestored64", register, pointer, pitch)

    def _move(self, b: Builder, name: str, register: int, pointer: Value, pitch: Dim) -> None:
        arguments = ((I8, str(register)), (PTR, pointer), (I64, str(pitch)))
        b.do_call(f"llvm.x86.{name}", *arguments)

    def multiply(self, b: Builder, sums: int, x: int, w: int) -> None:
        # Unsigned bytes of x times signed ones of w, four by four, added to int32 that wraps
        # around: the sums of VPDPBUSD.
        b.do_call("llvm.x86.tdpbusd", *((I8, str(r)) for r in (sums, x, w)))
