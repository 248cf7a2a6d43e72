"""Dot products of x86-64: AVX-VNNI, and pairs of bytes summed in 16 bits (AVX2)."""

from __future__ import annotations

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.dot import DotProduct, PairDot, WordDot
from quantglow.types import Array


class VnniDot(DotProduct):
    """Four unsigned bytes times four signed ones in one instruction, ``vpdpbusd``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        name = f"llvm.x86.avx512.vpdpbusd.{self.isa.vector_nbytes * 8}"
        kind, x, w = self.bytes_kind, operand[0], weights[0]
        return b.call(name, self.kind, (self.kind, sums), (kind, x), (kind, w))


class VnniWordDot(WordDot):
    """Two words times two words in one instruction, ``vpdpwssd``."""

    def added(self, b: Builder, sums: Value, x: Value, w: Value) -> Value:
        name, kind = f"llvm.x86.avx512.vpdpwssd.{self.isa.vector_nbytes * 8}", self.words_kind
        return b.call(name, self.kind, (self.kind, sums), (kind, x), (kind, w))


class SaturatingPairs(PairDot):
    """``pmaddubsw``, whose sums of two products saturate at 16 bits, then ``pmaddwd`` by ones."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        kind, x, w = self.bytes_kind, operand[0], weights[0]
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
