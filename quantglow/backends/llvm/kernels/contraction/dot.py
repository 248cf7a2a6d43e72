"""Dot products: how one step of a contraction is done on each target.

A step takes four bytes of an activation row (four unsigned bytes, two int16, or one float32) and
adds their product with packed weights to vectors of int32 (float32) lanes, one lane for each
output channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.kernels.contraction.tiling import StepCost
from quantglow.backends.llvm.target import Dot, Target
from quantglow.lazy import cached_property
from quantglow.types import Array, DType

STEP_NBYTES = 4
"""Bytes of an activation row that one step takes."""


@dataclass(frozen=True)
class DotProduct:
    """The arithmetic of a step: ``element`` is the lane type of the sums."""

    target: Target
    element: str

    @cached_property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @cached_property
    def kind(self) -> str:
        """The LLVM type of a vector of sums."""
        return vector(self.lanes, self.element)

    @cached_property
    def bytes_kind(self) -> str:
        return vector(self.lanes * 4, "i8")

    @cached_property
    def words_kind(self) -> str:
        return vector(self.lanes * 2, "i16")

    @cached_property
    def is_float(self) -> bool:
        return self.element == "float"

    @property
    def weights_dtype(self) -> np.dtype[Any]:
        """Of weights in the order of steps, before ``pack``."""
        return np.dtype(np.float32 if self.is_float else np.int8)

    @cached_property
    def widened(self) -> bool:
        """Whether weights are packed as 16-bit words, even and odd bytes apart."""
        return not self.is_float and self.target.dot is not Dot.VNNI

    @cached_property
    def weight_nbytes(self) -> int:
        """Packed weight bytes for one step of one vector."""
        return self.target.vector_nbytes * (2 if self.widened else 1)

    @cached_property
    def cost(self) -> StepCost:
        """What a step takes, for the choice of tiles."""
        if self.widened:
            # Few channels: then more steps have weights that ``pairs_fit``.
            most = 2 if self.target.dot is Dot.PAIRS else 4
            registers = self.target.registers
            return StepCost(registers, 1.0, 0.5, weights=2, operands=3, most_vectors=most)
        return StepCost(self.target.registers, core=self.target.core)

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        """Four bytes at ``row`` in every lane, ready for ``accumulate``."""
        if self.is_float:
            return (b.broadcast(self.lanes, "float", b.load("float", row)),)
        lanes = vector(self.lanes, "i32")
        copies = b.broadcast(self.lanes, "i32", b.load("i32", row))
        return self.operand_of(b, b.cast("bitcast", lanes, copies, self.bytes_kind))

    def operand_of(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        """The operand made of a byte vector (four bytes for each lane)."""
        if not self.widened:
            return (quads,)
        words = b.cast("bitcast", self.bytes_kind, quads, self.words_kind)
        even = b.op("and", self.words_kind, words, "splat (i16 255)")
        odd = b.op("lshr", self.words_kind, words, "splat (i16 8)")
        return even, odd

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        """Packed weights of one step of one vector."""
        kind = self.kind if self.is_float else self.bytes_kind
        if not self.widened:
            return (b.load(kind, b.at(pointer, offset), align=4),)
        half = self.target.vector_nbytes
        return tuple(
            b.load(self.words_kind, b.at(pointer, offset + i * half), align=4) for i in (0, 1)
        )

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        """``sums + operand . weights``"""
        if self.is_float:
            return self._fma(b, sums, operand[0], weights[0])
        if not self.widened:
            return self._vpdpbusd(b, sums, operand[0], weights[0])
        for a, w in zip(operand, weights, strict=True):
            sums = self._keep(b, b.op("add", self.kind, sums, self._pmaddwd(b, a, w)))
        return sums

    def _fma(self, b: Builder, sums: Value, x: Value, w: Value) -> Value:
        if not self.target.fma:
            return b.op("fadd", self.kind, sums, b.op("fmul", self.kind, x, w))
        kind = self.kind
        return b.call(f"llvm.fma.v{self.lanes}f32", kind, (kind, x), (kind, w), (kind, sums))

    def _vpdpbusd(self, b: Builder, sums: Value, x: Value, w: Value) -> Value:
        name = f"llvm.x86.avx512.vpdpbusd.{self.target.vector_nbytes * 8}"
        bytes_kind = self.bytes_kind
        return b.call(name, self.kind, (self.kind, sums), (bytes_kind, x), (bytes_kind, w))

    def _pmaddwd(self, b: Builder, x: Value, w: Value) -> Value:
        name = {
            16: "llvm.x86.sse2.pmadd.wd",
            32: "llvm.x86.avx2.pmadd.wd",
            64: "llvm.x86.avx512.pmaddw.d.512",
        }[self.target.vector_nbytes]
        return b.call(name, self.kind, (self.words_kind, x), (self.words_kind, w))

    def _keep(self, b: Builder, sums: Value) -> Value:
        """An identity LLVM cannot look through: it would reassociate the sums and spill."""
        return b.emit(f'call {self.kind} asm "", "=x,0"({self.kind} {sums})')

    def pack(self, quads: Array) -> Array:
        """Weights [..., lanes, elements of a step], of ``weights_dtype``, as kernels read them."""
        if not self.widened:
            return np.ascontiguousarray(quads)
        wide = quads.astype(np.int16)
        halves = np.stack([wide[..., 0::2], wide[..., 1::2]], axis=-3)
        return np.ascontiguousarray(halves)


@dataclass(frozen=True)
class PairProduct(DotProduct):
    """Products of two bytes each summed in 16 bits, two such sums in 32 bits.

    ``pmaddubsw`` saturates: use it with weights that ``pairs_fit`` only.
    """

    @property
    def widened(self) -> bool:
        return False

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        kind = self.bytes_kind
        pairs = b.call(
            "llvm.x86.avx2.pmadd.ub.sw", self.words_kind, (kind, operand[0]), (kind, weights[0])
        )
        quads = self._pmaddwd(b, pairs, "splat (i16 1)")
        return self._keep(b, b.op("add", self.kind, sums, quads))


@dataclass(frozen=True)
class WordProduct(DotProduct):
    """Two int16 activations times two weights, widened to int16 when they are packed.

    No sum of two products with an int8 leaves 32 bits: ``2 * 32768 * 128 = 2**23``.
    """

    @property
    def widened(self) -> bool:
        return False

    @property
    def weights_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int16)

    @cached_property
    def cost(self) -> StepCost:
        if self.target.dot is Dot.VNNI:
            return StepCost(self.target.registers, core=self.target.core)
        return StepCost(self.target.registers, 0.75, operands=2, most_vectors=4)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        x, w = (
            b.cast("bitcast", self.bytes_kind, v[0], self.words_kind) for v in (operand, weights)
        )
        if self.target.dot is not Dot.VNNI:
            return self._keep(b, b.op("add", self.kind, sums, self._pmaddwd(b, x, w)))
        name = f"llvm.x86.avx512.vpdpwssd.{self.target.vector_nbytes * 8}"
        words_kind = self.words_kind
        return b.call(name, self.kind, (self.kind, sums), (words_kind, x), (words_kind, w))


def pairs_fit(quads: Array) -> Array:
    """bool [...]: whether no bytes make a pair of int8 weights [..., 4] leave 16 bits.

    The extremes of ``a0 * w0 + a1 * w1`` with ``a`` in [0, 255] take 255 for every weight of one
    sign: ``255 * 128 = 32640`` fits, ``255 * 129`` does not, and as much below zero.
    """
    first, second = quads[..., 0::2], quads[..., 1::2]
    above = np.add(np.maximum(first, 0), np.maximum(second, 0), dtype=np.int16)
    below = np.add(np.minimum(first, 0), np.minimum(second, 0), dtype=np.int16)
    return np.asarray(((above <= 128) & (below >= -128)).all(axis=-1), np.bool_)


def dot_product(target: Target, x: DType) -> DotProduct:
    """The dot product of rows of float32, uint8 or int16 with weights of float32 or int8."""
    if x is DType.I16:
        return WordProduct(target, "i32")
    return DotProduct(target, "float" if x is DType.F32 else "i32")
