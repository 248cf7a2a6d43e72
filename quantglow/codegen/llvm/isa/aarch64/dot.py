"""Dot products of AArch64: ``sdot``, ``usdot`` and ``fmla`` with one lane of an operand,
and pairs of bytes summed in 16 bits."""

from __future__ import annotations

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, BlockDot, DotProduct, FloatDot
from quantglow.codegen.llvm.values import (
    ABSENT,
    FLOAT,
    I8,
    I16,
    I32,
    Type,
    Value,
    poison,
    splat,
    vector,
)
from quantglow.support.arrays import Array

BYTES, HALF, WORDS, QUADS = vector(16, I8), vector(8, I8), vector(8, I16), vector(4, I32)
SIGN = -128
LANES = 4


def dot(b: Builder, name: str, sums: Value, x: Value, w: Value) -> Value:
    """``sums`` plus products of bytes, by ``sdot``, ``usdot`` or ``smmla``."""
    name = f"llvm.aarch64.neon.{name}.v4i32.v16i8"
    return b.call(name, QUADS, (QUADS, sums), (BYTES, x), (BYTES, w))


def _load_lanes(b: Builder, element: Type, row: Value, steps: int) -> Value:
    """A vector that begins with the four bytes of each of ``steps`` steps; no byte behind them is
    read."""
    kind = vector(LANES, element)
    if steps == LANES:
        return b.load(kind, row)
    if steps == 1:
        return b.insert(poison(kind), b.load(element, row), 0)
    half = vector(2, element)
    lanes = b.shuffle(half, b.load(half, row), "poison", (0, 1, 2, 2))
    if steps == 2:
        return lanes
    last = b.load(element, b.at(row, 2 * STEP_NBYTES))
    return b.insert(lanes, last, 2)


def _spread_lanes(b: Builder, element: Type, row: Value, steps: int) -> list[Value]:
    """For each step, its four bytes in every lane, which instructions take as lanes of one
    register."""
    kind, loaded = vector(LANES, element), _load_lanes(b, element, row, steps)
    return [b.shuffle(kind, loaded, "poison", [step] * LANES) for step in range(steps)]


class LaneDot(DotProduct):
    """Products of bytes whose operand is a lane."""

    @property
    def steps_at_once(self) -> int:
        return LANES

    def operands(self, b: Builder, row: Value, steps: int) -> list[tuple[Value, ...]]:
        spread = _spread_lanes(b, I32, row, steps)
        return [self.to_operand(b, b.cast("bitcast", QUADS, lane, BYTES)) for lane in spread]


class SignedDot(LaneDot):
    """Four signed bytes times four signed ones in one instruction, ``sdot``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        # SDOT (Arm ARM, FEAT_DotProd) adds four products of a lane to its int32, which wraps
        # around.  Its form "by element" takes one lane of the operand for all, so nothing is
        # broadcast.
        return dot(b, "sdot", sums, weights[0], operand[0])


class UnsignedDot(LaneDot):
    """Four unsigned bytes times four signed ones in one instruction, ``usdot``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        # USDOT (Arm ARM, FEAT_I8MM): as SDOT, of unsigned bytes and signed ones.
        return dot(b, "usdot", sums, operand[0], weights[0])


class ShiftedDot(DotProduct):
    """The same where all bytes are signed: ``x * w = (x - 128) * w - (-128) * w``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        (x,), (w,) = operand, weights
        sign = splat(BYTES, str(SIGN))
        shift = dot(b, "sdot", splat(QUADS, "0"), sign, w)
        less = dot(b, "sdot", sums, b.op("xor", BYTES, x, sign), w)
        return b.op("sub", QUADS, less, shift)


class SignedPairs(DotProduct):
    """``smull`` and ``smlal2`` sum two products in 16 bits, ``sadalp`` adds neighbors: exact for
    weights above -128, since only ``-128 * -128 + -128 * -128 = 2**15`` leaves 16 bits.

    Weights hold the first two bytes of all channels, then the other two; an operand is each of its
    pairs eight times.
    """

    @property
    def mixes_pixels(self) -> bool:
        return False

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        spread = []
        for pair in (0, 1):
            word = b.load(I16, b.at(row, 2 * pair))
            words = b.broadcast(2 * LANES, I16, word)
            spread.append(b.cast("bitcast", WORDS, words, BYTES))
        return tuple(spread)

    def to_operand(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        """Pairs of all channels, then the other pairs, as weights hold them."""
        order = [4 * (i // 2 % LANES) + i % 2 + 2 * (i // 8) for i in range(16)]
        pairs = b.shuffle(BYTES, quads, "poison", order)
        return pairs, pairs

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        total: Value = ABSENT
        for half, x in enumerate(operand):
            lower = range(8 * half, 8 * half + 8)
            pair = [(HALF, b.shuffle(BYTES, v, "poison", lower)) for v in (x, weights[0])]
            products = b.call("llvm.aarch64.neon.smull.v8i16", WORDS, *pair)
            total = b.op("add", WORDS, total, products) if total else products
        widened = b.call("llvm.aarch64.neon.saddlp.v4i32.v8i16", QUADS, (WORDS, total))
        return b.op("add", QUADS, sums, widened)

    def pack(self, quads: Array) -> Array:
        return np.ascontiguousarray(np.stack([quads[..., :2], quads[..., 2:]], axis=-3))


class SignedBlocks(BlockDot):
    """Signed bytes by ``smmla``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        return dot(b, "sdot", sums, weights[0], operand[0])

    def multiply(self, b: Builder, sums: Value, x: Value, w: Value) -> Value:
        # SMMLA (Arm ARM, FEAT_I8MM): the 2 x 2 int32 sums of two rows of eight bytes times two
        # columns of eight, which wrap around: twice the products of SDOT in an instruction.
        return dot(b, "smmla", sums, x, w)


class LaneFloatDot(FloatDot):
    """``fmla`` with one lane of a vector of floats."""

    @property
    def steps_at_once(self) -> int:
        return LANES

    def operands(self, b: Builder, row: Value, steps: int) -> list[tuple[Value, ...]]:
        return [(lane,) for lane in _spread_lanes(b, FLOAT, row, steps)]
