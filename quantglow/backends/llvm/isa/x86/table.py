"""Look-up of bytes in tables of 256 entries, in registers of x86-64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.foreign_types import Array


def upper(b: Builder, kind: str, codes: Value, signed: bool) -> Value:
    """The lanes whose codes index the second half of the table."""
    return b.compare("sge" if signed else "slt", kind, codes, splat(kind, "0"))


class PermutedTable:
    """AVX-512 VBMI: two permutations of 128 entries each."""

    unroll = 2
    entries_at = 0

    def packed(self, values: Array) -> Array:
        return values

    def load(self, b: Builder, entries: Value) -> list[Value]:
        return [b.load("<64 x i8>", b.at(entries, 64 * i)) for i in range(4)]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        name, kind = "llvm.x86.avx512.vpermi2var.qi.512", "<64 x i8>"
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
        rows = [b.load("<16 x i8>", b.at(entries, 16 * i)) for i in range(16)]
        return [b.shuffle("<16 x i8>", row, "poison", order) for row in rows]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        kind = vector(self.lanes, "i8")
        flipped = b.op("xor", kind, codes, splat(kind, "-128"))
        low = self._half(b, flipped if signed else codes, table[:8])
        high = self._half(b, codes if signed else flipped, table[8:])
        return b.select(kind, upper(b, kind, codes, signed), high, low)

    def _half(self, b: Builder, index: Value, rows: Sequence[Value]) -> Value:
        """Entries of the indices that are not negative."""
        avx2, avx512 = "llvm.x86.avx2.pshuf.b", "llvm.x86.avx512.pshuf.b.512"
        name, kind = avx2 if self.lanes == 32 else avx512, vector(self.lanes, "i8")
        found = b.call(name, kind, (kind, rows[0]), (kind, index))
        for row in rows[1:]:
            index = b.op("sub", kind, index, splat(kind, "16"))
            found = b.op("xor", kind, found, b.call(name, kind, (kind, row), (kind, index)))
        return found
