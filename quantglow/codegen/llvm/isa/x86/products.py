"""The dot products of x86-64, by the way in which a level multiplies bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import DotProduct, PairDot, WidenedDot, WordDot
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.codegen.llvm.isa.x86.dot import NestedDot, SaturatingPairs, VnniDot, VnniWordDot


class X86ByteProducts(StrEnum):
    """How four unsigned bytes times four signed bytes are added to an int32 lane."""

    VNNI = "vnni"
    """``vpdpbusd``: one instruction."""
    PAIRS = "pairs"
    """``pmaddubsw``, ``pmaddwd`` by ones, ``paddd`` where the weights prove that no sum of two
    products leaves 16 bits; elsewhere as ``WORDS``."""
    WORDS = "words"
    """Exact on any SSE2: bytes widened to 16 bits, ``pmaddwd`` on even and odd bytes, ``paddd``."""


MakeDot = Callable[[InstructionSet, Core], DotProduct]
MakePairDot = Callable[[InstructionSet, Core], PairDot]


@dataclass(frozen=True)
class DotProducts:
    """The dot products of a level; None: ``unsigned`` serves, too.

    unsigned   unsigned bytes by signed ones
    words      16-bit words
    symmetric  as ``unsigned``, for weights above -128
    pairs      as ``unsigned``, for weights whose sums of two products stay in 16 bits
    """

    unsigned: MakeDot
    words: MakeDot
    symmetric: MakeDot | None
    pairs: MakePairDot | None


def step_cost(isa: InstructionSet, core: Core) -> StepCost:
    """The cost of one instruction for each step."""
    return StepCost(isa.registers, core=core)


def widening_cost(isa: InstructionSet, most_vectors: int) -> StepCost:
    """The cost of bytes that become words."""
    return StepCost(isa.registers, 1.0, 0.5, weights=2, operands=3, most_vectors=most_vectors)


def vnni_dot(isa: InstructionSet, core: Core) -> DotProduct:
    return VnniDot(isa, step_cost(isa, core))


def vnni_word_dot(isa: InstructionSet, core: Core) -> DotProduct:
    return VnniWordDot(isa, step_cost(isa, core))


def word_dot(isa: InstructionSet, core: Core) -> DotProduct:
    return WordDot(isa, StepCost(isa.registers, 0.75, operands=2, most_vectors=4))


def widened_dot(isa: InstructionSet, core: Core, most_vectors: int = 4) -> DotProduct:
    return WidenedDot(isa, widening_cost(isa, most_vectors), signed=False)


def nested_dot(isa: InstructionSet, core: Core, most_vectors: int = 4) -> DotProduct:
    cost = widening_cost(isa, most_vectors)
    return NestedDot(isa, cost, signed=False, rounds=isa.shuffles_bytes)


def saturating_pairs(isa: InstructionSet, core: Core) -> PairDot:
    return SaturatingPairs(isa, step_cost(isa, core))


FEW = 2
"""Vectors of channels beside ``SaturatingPairs``: with fewer, more steps have weights that fit."""

BYTE_PRODUCTS: dict[X86ByteProducts, DotProducts] = {
    X86ByteProducts.VNNI: DotProducts(vnni_dot, vnni_word_dot, symmetric=None, pairs=None),
    X86ByteProducts.PAIRS: DotProducts(
        partial(widened_dot, most_vectors=FEW),
        word_dot,
        symmetric=partial(nested_dot, most_vectors=FEW),
        pairs=saturating_pairs,
    ),
    X86ByteProducts.WORDS: DotProducts(widened_dot, word_dot, symmetric=nested_dot, pairs=None),
}
"""The dot products of each way."""
