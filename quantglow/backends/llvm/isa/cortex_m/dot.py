"""Dot products by ``smlad``, two products of 16-bit halves of registers added to a third one, and
byte by byte."""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.cortex_m.lanes import LANES, WORDS, element, gathered
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, DotProduct


def widened_halves(b: Builder, word: Value) -> tuple[Value, Value]:
    """Bytes 0 and 2 of a word as two signed 16-bit halves, and bytes 1 and 3: ``sxtb16``, which
    rotates its operand for nothing."""
    rotated = b.call("llvm.fshr.i32", "i32", ("i32", word), ("i32", word), ("i32", "8"))
    even, odd = (b.call("llvm.arm.sxtb16", "i32", ("i32", v)) for v in (word, rotated))
    return even, odd


def smlad(b: Builder, total: Value, x: Value, y: Value) -> Value:
    """``total`` plus the products of both halves."""
    return b.call("llvm.arm.smlad", "i32", ("i32", x), ("i32", y), ("i32", total))


class HalvesDot(DotProduct):
    """Four signed bytes of an activation row times those of four channels.

    Sums are a vector for LLVM, and four registers of the processor.
    """

    @property
    def mixes_pixels(self) -> bool:
        """No: the halves of one operand serve all lanes."""
        return False

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        """Whole words: LLVM loads bytes one by one."""
        loaded = b.load(WORDS, b.at(pointer, offset), align=4)
        return (b.cast("bitcast", WORDS, loaded, self.bytes_kind),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        x, w = (b.cast("bitcast", self.bytes_kind, v[0], WORDS) for v in (operand, weights))
        totals = []
        for lane in range(LANES):
            halves = [widened_halves(b, element(b, WORDS, v, lane)) for v in (x, w)]
            total = element(b, WORDS, sums, lane)
            for x_half, w_half in zip(*halves, strict=True):
                total = smlad(b, total, x_half, w_half)
            totals.append(total)
        return gathered(b, WORDS, totals)


class SingleDot(DotProduct):
    """The same where each product is an instruction of its own, and bytes are read one by one."""

    @property
    def mixes_pixels(self) -> bool:
        """No: each byte of an operand is read once for all lanes."""
        return False

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        quad = b.load("<4 x i8>", row)
        spread = [i % STEP_NBYTES for i in range(LANES * STEP_NBYTES)]
        return (b.shuffle("<4 x i8>", quad, "poison", spread),)

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        return (b.load(self.bytes_kind, b.at(pointer, offset)),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        for k in range(STEP_NBYTES):
            order = range(k, LANES * STEP_NBYTES, STEP_NBYTES)
            x, w = (
                b.cast("sext", "<4 x i8>", b.shuffle(self.bytes_kind, v[0], "poison", order), WORDS)
                for v in (operand, weights)
            )
            sums = b.op("add", WORDS, sums, b.op("mul", WORDS, x, w))
        return sums
