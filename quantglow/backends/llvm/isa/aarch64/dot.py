"""Dot products of AArch64: ``sdot`` and ``usdot``."""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder, Value, splat
from quantglow.backends.llvm.isa.dot import DotProduct

BYTES, QUADS = "<16 x i8>", "<4 x i32>"
SIGN = -128


def dot(b: Builder, name: str, sums: Value, x: Value, w: Value) -> Value:
    """``sums`` plus four products in each lane, by ``sdot`` or ``usdot``."""
    name = f"llvm.aarch64.neon.{name}.v4i32.v16i8"
    return b.call(name, QUADS, (QUADS, sums), (BYTES, x), (BYTES, w))


class SignedDot(DotProduct):
    """Four signed bytes times four signed ones in one instruction, ``sdot``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        return dot(b, "sdot", sums, operand[0], weights[0])


class UnsignedDot(DotProduct):
    """Four unsigned bytes times four signed ones in one instruction, ``usdot``."""

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
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
