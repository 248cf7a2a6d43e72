"""Dot products: one step of a contraction.

A step takes four bytes of an activation row (four bytes, two int16, or one float32) and adds their
product with packed weights to vectors of int32 (float32) lanes, one lane for each output channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import StepCost
from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, Operand, Type, Value, vector
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

STEP_NBYTES = 4
"""Bytes of an activation row that one step takes."""


class WordArithmetic(Protocol):
    """The operations of an instruction set that dot products are made of."""

    @property
    def vector_nbytes(self) -> int: ...

    @property
    def has_fma(self) -> bool: ...

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value: ...

    def keep(self, b: Builder, kind: Type, value: Value) -> Value: ...


@dataclass(frozen=True)
class DotProduct(ABC):
    """The arithmetic of a step for one type of activations."""

    isa: WordArithmetic
    cost: StepCost

    @property
    def element(self) -> Type:
        """The LLVM type of a lane of sums."""
        return I32

    @property
    def is_float(self) -> bool:
        return False

    @property
    def widen(self) -> bool:
        """Whether bytes are multiplied as words: an operand is two vectors of words."""
        return False

    @property
    def exceeds(self) -> bool:
        """Whether ``excess`` is not zero."""
        return False

    def excess(self, quads: Array, positions: Collection[int] = range(STEP_NBYTES)) -> Array:
        """int64 [...]: what ``accumulate`` adds to a sum beside the product of an operand and
        weights [..., elements of a step], whatever the operand is; see ``select_parts``."""
        return np.zeros(quads.shape[:-1], np.int64)

    @property
    def multiplies_elements(self) -> bool:
        """Whether operands and weights are a vector of words for each element of a step, whose
        products are added one after the other."""
        return False

    def to_words(self, b: Builder, kind: Type, elements: Value) -> Value:
        """Activations of type ``kind`` as words, where products are of elements."""
        raise NotImplementedError

    @property
    def mixes_pixels(self) -> bool:
        """Whether an operand is one vector, each lane of which may belong to another pixel."""
        return not self.widen and self.steps_at_once == 1

    @property
    def weights_dtype(self) -> np.dtype[Any]:
        """Element type of weights in the order of steps, before ``pack``."""
        return np.dtype(np.int8)

    @cached_property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.isa.vector_nbytes // 4

    @cached_property
    def kind(self) -> Type:
        """The LLVM type of a vector of sums."""
        return vector(self.lanes, self.element)

    @cached_property
    def bytes_kind(self) -> Type:
        return vector(self.lanes * 4, I8)

    @cached_property
    def words_kind(self) -> Type:
        return vector(self.lanes * 2, I16)

    @property
    def operand_kind(self) -> Type:
        """The LLVM type of each part of an operand."""
        return self.bytes_kind

    @property
    def weight_nbytes(self) -> int:
        """Packed weight bytes for one step of one vector."""
        return self.isa.vector_nbytes

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        """Four bytes at ``row`` in every lane, ready for ``accumulate``."""
        lanes = vector(self.lanes, I32)
        copies = b.broadcast(self.lanes, I32, b.load(I32, row))
        return self.to_operand(b, b.cast("bitcast", lanes, copies, self.bytes_kind))

    @property
    def steps_at_once(self) -> int:
        """Steps whose operands are lanes of one load; 1 where each has a load of its own."""
        return 1

    def operands(self, b: Builder, row: Value, steps: int) -> list[tuple[Value, ...]]:
        """The operands of ``steps`` successive steps, at most ``steps_at_once``."""
        return [self.operand(b, b.at(row, STEP_NBYTES * step)) for step in range(steps)]

    def to_operand(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        """The operand made of a byte vector (four bytes for each lane)."""
        return (quads,)

    def select_parts(
        self, parts: tuple[Value, ...], positions: Collection[int]
    ) -> tuple[Value, ...]:
        """The parts of an operand, or of weights, that ``accumulate`` needs where all weights but
        those at ``positions`` of a step are zero."""
        return parts

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        """Packed weights of one step of one vector."""
        return (b.load(self.bytes_kind, b.at(pointer, offset), align=4),)

    @abstractmethod
    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        """``sums + operand . weights``"""

    def pack(self, quads: Array) -> Array:
        """Weights [..., lanes, elements of a step], of ``weights_dtype``, as kernels read them."""
        return np.ascontiguousarray(quads)


class FloatDot(DotProduct):
    """One float32 product, fused with the addition where the instruction set can."""

    @property
    def element(self) -> Type:
        return FLOAT

    @property
    def is_float(self) -> bool:
        return True

    @property
    def weights_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    @property
    def operand_kind(self) -> Type:
        return self.kind

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        return (b.broadcast(self.lanes, FLOAT, b.load(FLOAT, row)),)

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        return (b.load(self.kind, b.at(pointer, offset), align=4),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        kind, x, w = self.kind, operand[0], weights[0]
        if not self.isa.has_fma:
            return b.op("fadd", kind, sums, b.op("fmul", kind, x, w))
        return b.call(f"llvm.fma.v{self.lanes}f32", kind, (kind, x), (kind, w), (kind, sums))


@dataclass(frozen=True)
class WidenedDot(DotProduct):
    """Four byte products by way of 16 bits: exact wherever pairs of words can be multiplied.

    Activations are signed or unsigned bytes; even and odd ones are widened apart.  So are weights,
    when they are loaded: they are packed as bytes, the even ones of a vector first.
    """

    signed: bool

    @property
    def widen(self) -> bool:
        return True

    @property
    def operand_kind(self) -> Type:
        return self.words_kind

    def to_operand(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        kind = self.words_kind
        words = b.cast("bitcast", self.bytes_kind, quads, kind)
        if not self.signed:
            even = b.op("and", kind, words, "splat (i16 255)")
            return even, b.op("lshr", kind, words, "splat (i16 8)")
        raised = b.op("shl", kind, words, "splat (i16 8)")
        even = b.op("ashr", kind, raised, "splat (i16 8)")
        return even, b.op("ashr", kind, words, "splat (i16 8)")

    def select_parts(
        self, parts: tuple[Value, ...], positions: Collection[int]
    ) -> tuple[Value, ...]:
        count = len(parts)
        return tuple(parts[i] for i in sorted({place % count for place in positions}))

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        half = self.weight_nbytes // 2
        places = (b.at(pointer, offset + i * half) for i in (0, 1))
        return tuple(self.words_at(b, self.words_kind, place) for place in places)

    def words_at(self, b: Builder, kind: Type, pointer: Value) -> Value:
        """Packed weights as words of type ``kind``."""
        octets = kind.with_element(I8)
        return b.cast("sext", octets, b.load(octets, pointer, align=4), kind)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        for x, w in zip(operand, weights, strict=True):
            products = self.isa.word_products(b, x, w)
            sums = self.isa.keep(b, self.kind, b.op("add", self.kind, sums, products))
        return sums

    def pack(self, quads: Array) -> Array:
        halves = np.stack([quads[..., 0::2], quads[..., 1::2]], axis=-3)
        return np.ascontiguousarray(halves)


class WordDot(DotProduct):
    """Two int16 activations times two weights, widened to int16 when they are packed.

    No sum of two products with an int8 leaves 32 bits: ``2 * 32768 * 128 = 2**23``.
    """

    @property
    def weights_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int16)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        return self.added(b, sums, *self.words(b, operand, weights))

    def words(
        self, b: Builder, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> tuple[Value, Value]:
        """Operand and weights as vectors of words."""
        x, w = (
            b.cast("bitcast", self.bytes_kind, v[0], self.words_kind) for v in (operand, weights)
        )
        return x, w

    def added(self, b: Builder, sums: Value, x: Operand, w: Value) -> Value:
        """``sums`` plus the products of words, pair by pair."""
        products = self.isa.word_products(b, x, w)
        return self.isa.keep(b, self.kind, b.op("add", self.kind, sums, products))


class BlockDot(DotProduct):
    """Products of two pixels' eight bytes with two channels' eight bytes: a block of four sums.

    Vectors of sums hold two channels of the one pixel, then the same of the other; those of the
    vector's other channels are in another one.
    """

    @abstractmethod
    def multiply(self, b: Builder, sums: Value, x: Value, w: Value) -> Value:
        """``sums`` plus the products of two pixels' bytes ``x`` with two channels' ``w``."""


class PairDot(DotProduct):
    """Four byte products of which two are summed in 16 bits: right where the weights fit."""

    @abstractmethod
    def fits(self, quads: Array) -> Array:
        """bool [...]: whether no activations make a pair of int8 weights [..., 4] leave 16 bits."""


class MergedDot(DotProduct):
    """Products of signed bytes with the weights of two channels in one word, ``256 b + a``: exact
    where no sum of products of a channel ``b`` reaches ``2**23``, and no weight is -128."""

    @abstractmethod
    def opened(self, b: Builder, bias: Value) -> Value:
        """Initial sums as ``accumulate`` takes them: both of a pair begin with the bias of ``a``,
        so that nothing but products is multiplied by 256."""

    @abstractmethod
    def closed(self, b: Builder, sums: Value, bias: Value) -> Value:
        """Sums of each channel."""


class LaneProducts(Protocol):
    """Products of signed bytes lane by lane, added to int32."""

    @property
    def weight_nbytes(self) -> int:
        """Bytes of the packed weights of a vector."""

    def pack(self, w: Array) -> Array:
        """int8 weights [..., lanes] as kernels read them."""

    def weights(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        """Packed weights of a vector."""

    def operand(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        """A byte for each lane."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        """``sums`` plus the product of each lane."""


class WindowWords(Protocol):
    """Words of four bytes of one channel, and vectors of words of several lines."""

    def store_in_turn(self, b: Builder, vectors: Sequence[Value], pointer: Value) -> None:
        """Store four vectors of bytes: a byte of each, then the next one of each, and so on."""

    def gather_words(self, b: Builder, pointer: Value, offsets: Operand) -> Value:
        """A vector of the int32 at aligned ``offsets`` from ``pointer``, in bytes."""

    def scatter_bytes(self, b: Builder, values: Value, pointer: Value, offsets: Value) -> None:
        """Store the lowest byte of each int32 at ``offsets`` from ``pointer``."""
