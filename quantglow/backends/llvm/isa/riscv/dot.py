"""Dot products of RISC-V: one activation times a vector of weights.

LLVM selects ``vwmacc.vx`` for a scalar of 16 bits in every lane, times words, both widened, plus a
vector of int32; without vectors, ``mul`` and ``addw``.  Weights are packed in a vector for each
element of a step, bytes as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, DotProduct, WidenedDot
from quantglow.foreign_types import Array


class ScalarDot(DotProduct):
    """Each element of a step is multiplied and added by an instruction of its own."""

    @property
    def elements(self) -> int:
        """Elements of a step."""
        return STEP_NBYTES // self.weights_dtype.itemsize

    @property
    def is_signed(self) -> bool:
        return True

    @property
    def mixes_pixels(self) -> bool:
        return False

    @property
    def multiplies_elements(self) -> bool:
        return True

    @property
    def operand_kind(self) -> str:
        return vector(self.lanes, "i16")

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        """Each element at ``row`` in every lane of a vector."""
        element = vector(1, f"i{32 // self.elements}")
        places = (b.at(row, i * STEP_NBYTES // self.elements) for i in range(self.elements))
        loaded = (self.words_of(b, element, b.load(element, place)) for place in places)
        return tuple(b.broadcast(self.lanes, "i16", word) for word in loaded)

    def operand_of(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        count = self.lanes * self.elements
        whole, part = (vector(n, f"i{32 // self.elements}") for n in (count, self.lanes))
        if whole != self.bytes_kind:
            quads = b.cast("bitcast", self.bytes_kind, quads, whole)
        orders = (range(i, count, self.elements) for i in range(self.elements))
        return tuple(self.words_of(b, part, b.shuffle(whole, quads, "poison", o)) for o in orders)

    def words_of(self, b: Builder, kind: str, elements: Value) -> Value:
        """Elements in 16 bits."""
        wide = kind.replace("i8", "i16")
        if kind == wide:
            return elements
        return b.cast("sext" if self.is_signed else "zext", kind, elements, wide)

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        vector_nbytes = self.weight_nbytes // self.elements
        places = (b.at(pointer, offset + i * vector_nbytes) for i in range(self.elements))
        return tuple(self.words_at(b, self.operand_kind, place) for place in places)

    def words_at(self, b: Builder, kind: str, pointer: Value) -> Value:
        """A vector of packed weights as words."""
        return b.load(kind, pointer, align=4)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        for x, w in zip(operand, weights, strict=True):
            wide = [b.cast("sext", self.operand_kind, v, self.kind) for v in (x, w)]
            sums = self.isa.keep(
                b, self.kind, b.op("add", self.kind, sums, b.op("mul", self.kind, *wide))
            )
        return sums

    def pack(self, quads: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(quads, -1, -2))


@dataclass(frozen=True)
class ScalarBytes(ScalarDot, WidenedDot):
    """Four bytes, widened to 16 bits, and weights that are widened when they are loaded."""

    def words_at(self, b: Builder, kind: str, pointer: Value) -> Value:
        return WidenedDot.words_at(self, b, kind, pointer)

    @property
    def is_signed(self) -> bool:
        return self.signed


class ScalarWords(ScalarDot):
    """Two int16."""

    @property
    def weights_dtype(self) -> np.dtype[np.int16]:
        return np.dtype(np.int16)
