"""The instruction sets of Cortex-M: sixteen registers of 32 bits, with and without float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.isa.cortex_m import float_functions, float_routines
from quantglow.backends.llvm.isa.cortex_m.dot import (
    HalvesDot,
    HalvesProducts,
    MergedHalvesDot,
    SingleDot,
    SingleProducts,
    smlad,
)
from quantglow.backends.llvm.isa.cortex_m.integer_comparisons import with_integer_comparisons
from quantglow.backends.llvm.isa.cortex_m.integer_rounding import REQUANTIZED, ROUNDED, called
from quantglow.backends.llvm.isa.cortex_m.lanes import LANES, element, gathered
from quantglow.backends.llvm.isa.costs import Core, StepCost
from quantglow.backends.llvm.isa.dot import DotProduct, LaneProducts, MergedDot
from quantglow.backends.llvm.isa.interface import Steps
from quantglow.backends.llvm.isa.portable import Portable
from quantglow.backends.llvm.isa.sharing import Sharing
from quantglow.backends.llvm.isa.waiting import Waiting
from quantglow.types import DType

TILE_REGISTERS = 3
"""Vectors of four that the tile of a dot product may take: one of sums, and its operands."""


@dataclass(frozen=True)
class CortexM(Portable):
    """Vectors of four lanes that are scalars for the processor."""

    @property
    def waiting(self) -> Waiting:
        """Nothing: there are no threads, and no clock that all processors have."""
        return Waiting("", "", "", "add i64 0, 0", 1e9, "")

    @property
    def prefetches(self) -> bool:
        return False

    @property
    def sharing(self) -> Sharing:
        return Sharing.OUTER

    @property
    def float_lanes(self) -> int:
        """Steps of four elements share what a loop costs."""
        return 4


class SmallCortexM(CortexM):
    """Armv6-M: one product in an instruction, and floating point in software."""

    @property
    def sharing(self) -> Sharing:
        """Addresses in loops, too: offsets in instructions are short anyway."""
        return Sharing.ALL

    @property
    def float_lanes(self) -> int:
        """Floating point in software takes so long that loops cost nothing beside it."""
        return 1

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.I8:
            return SingleDot(self, StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core))
        return super().dot_product(x, core)

    @property
    def lane_products(self) -> LaneProducts | None:
        return SingleProducts()

    # -- results

    @property
    def requantizes_integers(self) -> bool:
        return True

    def requantized(self, b: Builder, lanes: int, sums: Value, scale: Value) -> Value:
        ints = b.cast("bitcast", vector(lanes, "float"), scale, vector(lanes, "i32"))
        return called(b, "requantized", REQUANTIZED, lanes, sums, ints)

    def scaled(self, b: Builder, lanes: int, sums: Value, scale: Value) -> Value:
        return float_functions.scaled(b, lanes, sums, scale, super().scaled)

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        ints = b.cast("bitcast", vector(lanes, "float"), value, vector(lanes, "i32"))
        return called(b, "rounded", ROUNDED, lanes, ints)

    # -- code generation

    def legal(self, text: str) -> str:
        return with_integer_comparisons(text)

    def function(
        self, b: Builder, name: str, lanes: int, x: Value, steps: Mapping[str, Steps]
    ) -> Value:
        return float_functions.function(b, name, lanes, x, steps)

    def routines(self, texts: Sequence[str]) -> str:
        return float_routines.routines(texts)

    @property
    def routine_levels(self) -> Sequence[set[str]]:
        return (*float_functions.LEVELS, *float_routines.LEVELS)


class SignalCortexM(CortexM):
    """Armv7E-M and Armv8-M with the extensions for signal processing and float32."""

    @property
    def branches(self) -> bool:
        return True

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.I8:
            cost = StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core)
            return HalvesDot(self, cost)
        return super().dot_product(x, core)

    def merged_product(self, core: Core) -> MergedDot | None:
        cost = StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core)
        return MergedHalvesDot(self, cost)

    @property
    def lane_products(self) -> LaneProducts | None:
        return HalvesProducts()

    def word_products(self, b: Builder, x: Value, y: Value) -> Value:
        words, pairs = vector(LANES, "i32"), vector(2 * LANES, "i16")
        left, right = (b.cast("bitcast", pairs, v, words) for v in (x, y))
        made = [
            smlad(b, "0", element(b, words, left, i), element(b, words, right, i))
            for i in range(LANES)
        ]
        return gathered(b, words, made)

    # -- results

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtr``, which saturates, and the minimum for NaN."""
        kind, ints = vector(lanes, "float"), vector(lanes, "i32")
        rounded = self.round_number(b, lanes, value)
        is_number = b.compare("ord", kind, value, value)
        return b.select(ints, is_number, rounded, splat(ints, str(-(2**31))))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtr``: rounds as the processor is set, which is half to even."""
        kind, ints = vector(lanes, "float"), vector(lanes, "i32")
        if lanes == 1:
            return rounded(b, value)
        return gathered(b, ints, [rounded(b, element(b, kind, value, i)) for i in range(lanes)])


def rounded(b: Builder, value: Value) -> Value:
    """A float32 rounded half to even, as int32."""
    found = b.call("llvm.arm.vcvtr.f32", "float", ("float", value))
    return b.cast("bitcast", "float", found, "i32")
