"""The instruction set of Cortex-M55: eight registers of 16 bytes (MVE, called Helium).

Vectors of float32 flush numbers below ``2**-126`` to zero.  Requantized sums stay: any int32
times such a multiplier rounds to zero anyway, and so does a product as small.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.cortex_m.comparisons import with_ordered_comparisons
from quantglow.backends.llvm.isa.cortex_m.dot import SingleProducts
from quantglow.backends.llvm.isa.cortex_m.instructions import SignalCortexM, rounded
from quantglow.backends.llvm.isa.cortex_m.lanes import LANES
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.isa.dot import DotProduct, LaneProducts, MergedDot, WindowWords
from quantglow.backends.llvm.isa.portable import Portable
from quantglow.types import DType

SIGNED = (("i32", "0"), ("i32", "0"), ("i32", "0"))
"""Neither unsigned nor subtracted nor exchanged."""
BYTES, WORDS = "<16 x i8>", "<4 x i32>"
STAGES = 4
"""Instructions that store four vectors in turn, each a part of all bytes."""


class HeliumWords:
    """``vst4``, and loads and stores with a vector of offsets."""

    def store_in_turn(self, b: Builder, vectors: Sequence[Value], pointer: Value) -> None:
        operands = [("ptr", pointer), *((BYTES, each) for each in vectors)]
        for stage in range(STAGES):
            b.call("llvm.arm.mve.vst4q.p0.v16i8", "void", *operands, ("i32", str(stage)))

    def gather_words(self, b: Builder, pointer: Value, offsets: Value) -> Value:
        how = (("i32", "32"), ("i32", "0"), ("i32", "0"))
        operands = (("ptr", pointer), (WORDS, offsets), *how)
        return b.call("llvm.arm.mve.vldr.gather.offset.v4i32.p0.v4i32", WORDS, *operands)

    def scatter_bytes(self, b: Builder, values: Value, pointer: Value, offsets: Value) -> None:
        operands = (("ptr", pointer), (WORDS, offsets), (WORDS, values))
        name = "llvm.arm.mve.vstr.scatter.offset.p0.v4i32.v4i32"
        b.call(name, "void", *operands, ("i32", "8"), ("i32", "0"))


class Helium(SignalCortexM):
    """Vectors in registers; sums of products of whole vectors are scalars."""

    @property
    def float_lanes(self) -> int:
        return 0

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        return Portable.dot_product(self, x, core)

    def merged_product(self, core: Core) -> MergedDot | None:
        return None

    @property
    def row_products(self) -> bool:
        return True

    def row_product(self, b: Builder, total: Value, x: Value, w: Value) -> Value:
        """``vmlava``"""
        operands = (("i32", total), (BYTES, x), (BYTES, w))
        return b.call("llvm.arm.mve.vmldava.v16i8", "i32", *SIGNED, *operands)

    @property
    def window_words(self) -> WindowWords | None:
        return HeliumWords()

    @property
    def lane_products(self) -> LaneProducts | None:
        return SingleProducts()

    def word_products(self, b: Builder, x: Value, y: Value) -> Value:
        return Portable.word_products(self, b, x, y)

    # -- code generation

    def legal(self, text: str) -> str:
        return with_ordered_comparisons(text)

    # -- results

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtn``, four lanes at a time."""
        if lanes == 1:
            return rounded(b, value)
        if lanes == LANES:
            operands = (("i32", "0"), ("<4 x float>", value))
            return b.call("llvm.arm.mve.vcvtn.v4i32.v4f32", "<4 x i32>", *operands)
        half, kind = lanes // 2, vector(lanes, "float")
        parts = []
        for first in (0, half):
            part = b.shuffle(kind, value, "poison", range(first, first + half))
            parts.append(self.round_number(b, half, part))
        return b.shuffle(vector(half, "i32"), parts[0], parts[1], range(lanes))
