"""Dot products by ``smlad``, two products of 16-bit halves of registers added to a third one, and
byte by byte."""

from __future__ import annotations

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.cortex_m.integer_rounding import LANES, WORDS, build_vector, element
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct, MergedDot
from quantglow.codegen.llvm.values import I8, I32, I64, PTR, Operand, Value, vector
from quantglow.support.arrays import Array


def _widen_halves(b: Builder, word: Value) -> tuple[Value, Value]:
    """Bytes 0 and 2 of a word as two signed 16-bit halves, and bytes 1 and 3: ``sxtb16``, which
    rotates its operand for nothing."""
    rotated = b.call("llvm.fshr.i32", I32, (I32, word), (I32, word), (I32, "8"))
    even, odd = (b.call("llvm.arm.sxtb16", I32, (I32, v)) for v in (word, rotated))
    return even, odd


def smlad(b: Builder, total: Operand, x: Value, y: Value) -> Value:
    """``total`` plus the products of both halves."""
    return b.call("llvm.arm.smlad", I32, (I32, x), (I32, y), (I32, total))


def _load_words(b: Builder, pointer: Value, count: int) -> tuple[Value, ...]:
    """So many aligned words, two by each ``ldrd``: LLVM selects it where 64 bits are volatile."""
    words: list[Value] = []
    for index in range(0, count, 2):
        both = b.load_volatile(I64, b.at(pointer, 4 * index), align=4)
        upper = b.op("lshr", I64, both, "32")
        words += (b.cast("trunc", I64, half, I32) for half in (both, upper))
    return tuple(words)


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
        words = build_vector(b, WORDS, _load_words(b, b.at(pointer, offset), LANES))
        return (b.cast("bitcast", WORDS, words, self.bytes_kind),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        x, w = (b.cast("bitcast", self.bytes_kind, v[0], WORDS) for v in (operand, weights))
        totals = []
        for lane in range(LANES):
            halves = [_widen_halves(b, element(b, WORDS, v, lane)) for v in (x, w)]
            total = element(b, WORDS, sums, lane)
            for x_half, w_half in zip(*halves, strict=True):
                total = smlad(b, total, x_half, w_half)
            totals.append(total)
        return build_vector(b, WORDS, totals)


class MergedHalvesDot(HalvesDot, MergedDot):
    """The same with two channels in a word: its lower bytes are widened, the word is not."""

    def pack(self, quads: Array) -> Array:
        """The words of bytes 0 and 2 of each pair of channels, then those of bytes 1 and 3."""
        wide = quads.astype(np.int16)
        merged = wide[..., 1::2, :] * 256 + wide[..., 0::2, :]
        return np.ascontiguousarray(merged[..., [0, 2, 1, 3]])

    def opened(self, b: Builder, bias: Value) -> Value:
        firsts = [element(b, WORDS, bias, lane) for lane in range(0, LANES, 2)]
        return build_vector(b, WORDS, [first for first in firsts for _ in range(2)])

    def closed(self, b: Builder, sums: Value, bias: Value) -> Value:
        totals = [element(b, WORDS, sums, lane) for lane in range(LANES)]
        for lane in range(1, LANES, 2):
            odd = b.op("sub", I32, totals[lane], totals[lane - 1])
            odd = b.op("ashr", I32, odd, "8")
            totals[lane] = b.op("add", I32, odd, element(b, WORDS, bias, lane))
        return build_vector(b, WORDS, totals)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        x, w = (b.cast("bitcast", self.bytes_kind, v[0], WORDS) for v in (operand, weights))
        halves = _widen_halves(b, element(b, WORDS, x, 0))
        totals = [element(b, WORDS, sums, lane) for lane in range(LANES)]
        for pair in range(0, LANES, 2):
            for half in (0, 1):
                word = element(b, WORDS, w, pair + half)
                low = b.call("llvm.arm.sxtb16", I32, (I32, word))
                totals[pair] = smlad(b, totals[pair], halves[half], low)
                totals[pair + 1] = smlad(b, totals[pair + 1], halves[half], word)
        return build_vector(b, WORDS, totals)


class HalvesProducts:
    """``smlabb`` and ``smlatt``: four bytes as halves of two registers, weights widened before."""

    weight_nbytes = 2 * LANES

    def pack(self, w: Array) -> Array:
        return np.ascontiguousarray(w.astype(np.int16)[..., [0, 2, 1, 3]])

    def weights(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        """Not before the tap at hand is done: loaded early, all of them would be spilled."""
        b.do('call void asm sideeffect "", "~{memory}"()')
        return b.load(I32, pointer, align=4), b.load(I32, b.at(pointer, 4), align=4)

    def operand(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        return _widen_halves(b, b.load(I32, pointer))

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        totals = []
        for lane in range(LANES):
            odd, upper = lane % 2, lane // 2
            name = "llvm.arm.smlatt" if upper else "llvm.arm.smlabb"
            factors = ((I32, operand[odd]), (I32, weights[odd]))
            totals.append(b.call(name, I32, *factors, (I32, element(b, WORDS, sums, lane))))
        return build_vector(b, WORDS, totals)


class SingleProducts:
    """Bytes read and multiplied one by one."""

    weight_nbytes = LANES

    def pack(self, w: Array) -> Array:
        return np.ascontiguousarray(w)

    def weights(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        return self.operand(b, pointer)

    def operand(self, b: Builder, pointer: Value) -> tuple[Value, ...]:
        return (b.cast("sext", vector(4, I8), b.load(vector(4, I8), pointer), WORDS),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        return b.op("add", WORDS, sums, b.op("mul", WORDS, operand[0], weights[0]))


class Address(Value):
    """A pointer to bytes that are read where they are multiplied."""


class SingleDot(DotProduct):
    """The same where each product is an instruction of its own, and bytes are read one by one."""

    @property
    def mixes_pixels(self) -> bool:
        """No: each byte of an operand is read once for all lanes."""
        return False

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        """The address of the bytes: loaded early, most of them would be spilled."""
        return (Address.of(row, PTR),)

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        return (Address.of(b.at(pointer, offset), PTR),)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        """Byte by byte where both are addresses; kernels that compute operands have vectors."""
        if isinstance(operand[0], Address) and isinstance(weights[0], Address):
            return _accumulate_bytes(b, sums, operand[0], weights[0])
        vectors = self._spread(b, operand[0]), self._loaded(b, weights[0])
        for k in range(STEP_NBYTES):
            order = range(k, LANES * STEP_NBYTES, STEP_NBYTES)
            x, w = (
                b.cast("sext", vector(4, I8), b.shuffle(self.bytes_kind, v, "poison", order), WORDS)
                for v in vectors
            )
            sums = b.op("add", WORDS, sums, b.op("mul", WORDS, x, w))
        return sums

    def _spread(self, b: Builder, operand: Value) -> Value:
        """Four bytes for each lane."""
        if not isinstance(operand, Address):
            return operand
        spread = [i % STEP_NBYTES for i in range(LANES * STEP_NBYTES)]
        return b.shuffle(vector(4, I8), b.load(vector(4, I8), operand), "poison", spread)

    def _loaded(self, b: Builder, weights: Value) -> Value:
        return b.load(self.bytes_kind, weights) if isinstance(weights, Address) else weights


def _accumulate_bytes(b: Builder, sums: Value, row: Value, weights: Value) -> Value:
    """Products in this order, in which sums and addresses stay in registers."""
    totals = [element(b, WORDS, sums, lane) for lane in range(LANES)]
    for k in range(STEP_NBYTES):
        x = _load_byte(b, row, k)
        for lane in range(LANES):
            w = _load_byte(b, weights, STEP_NBYTES * lane + k)
            total = b.op("add", I32, totals[lane], b.op("mul", I32, x, w))
            totals[lane] = hold(b, total)
    return build_vector(b, WORDS, totals)


def _load_byte(b: Builder, pointer: Value, offset: int) -> Value:
    """A signed byte, loaded here, since LLVM keeps volatile loads in order, and extended by an
    instruction of its own: a load that does so takes its offset from a register."""
    byte = b.load_volatile(I8, b.at(pointer, offset))
    word = hold(b, b.cast("zext", I8, byte, I32))
    return b.cast("sext", I8, b.cast("trunc", I32, word, I8), I32)


def hold(b: Builder, value: Value) -> Value:
    """The same word, computed here."""
    return b.in_register(value, "r", is_used=True)
