"""The instruction set of Cortex-M55: eight registers of 16 bytes (MVE, called Helium).

Vectors of float32 flush numbers below ``2**-126`` to zero.  Requantized sums stay: any int32
times such a multiplier rounds to zero anyway, and so does a product as small.
"""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.cortex_m.dot import SingleProducts
from quantglow.backends.llvm.isa.cortex_m.instructions import SignalCortexM, rounded
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.isa.dot import DotProduct, LaneProducts, MergedDot
from quantglow.backends.llvm.isa.portable import Portable
from quantglow.types import DType

LANES = 4
SIGNED = (("i32", "0"), ("i32", "0"), ("i32", "0"))
"""Neither unsigned nor subtracted nor exchanged."""


class Helium(SignalCortexM):
    """Vectors in registers; sums of products of whole vectors are scalars."""

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
        operands = (("i32", total), ("<16 x i8>", x), ("<16 x i8>", w))
        return b.call("llvm.arm.mve.vmldava.v16i8", "i32", *SIGNED, *operands)

    @property
    def lane_products(self) -> LaneProducts | None:
        return SingleProducts()

    def word_products(self, b: Builder, x: Value, y: Value) -> Value:
        return Portable.word_products(self, b, x, y)

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
