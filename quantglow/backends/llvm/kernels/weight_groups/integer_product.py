"""Products of int8 rows with codes of weights: an exact int32 sum for each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantglow.backends.llvm.builder import Value, splat
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, DotProduct, WidenedDot
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.backends.llvm.kernels.weight_groups.product import (
    GroupedProduct,
    greatest_divisor,
    zeros,
)
from quantglow.lazy import cached_property
from quantglow.ops.weight_groups import SUM_NBYTES, group_nbytes
from quantglow.types import DType

UNROLLED = 8
"""Words of activations that one step of the loop takes."""
NARROW = 4
"""Codes of so many bits times int8 fit 16 bits by pairs: ``2 * 15 * 127``."""


class IntegerProduct(GroupedProduct):
    """Codes are the unsigned operand of a dot product of bytes, activations the signed one.

    A sum starts as the zero point times the negative sum of the activations.
    """

    @property
    def most_rows(self) -> int:
        return 12 if self.target.registers >= 32 else 4

    @cached_property
    def dot(self) -> DotProduct:
        plain, isa = self.target.dot_product(DType.U8), self.target.isa
        if self.op.bits <= NARROW and not plain.widened and not isa.unsigned_activations:
            return self.target.dot_product(DType.I8)  # Such codes are the same, signed or not.
        if not plain.widened or self.op.bits > NARROW:
            return plain
        return self.target.isa.pair_product(self.target.core) or plain

    @cached_property
    def signed(self) -> DotProduct:
        """The dot product whose operands are activations."""
        return replace(self.dot, signed=True) if isinstance(self.dot, WidenedDot) else self.dot

    def keeps_totals(self, rows: int) -> bool:
        """Whether totals of a tile lie in registers, beside the sums of a group."""
        return 2 * rows * len(self.vectors) <= self.target.registers // 4

    def prepare(self, rows: int) -> None:
        count = rows * len(self.vectors)
        self.memory = [self.b.room(self.floats) for _ in range(count)]

    def tile(self, rows: int, x: Value, out: Value) -> None:
        b, count = self.b, rows * len(self.vectors)
        start = [(self.floats, zeros(self.floats))] * count
        if not self.keeps_totals(rows):
            for (kind, zero), room in zip(start, self.memory, strict=False):
                b.store(kind, zero, room, align=16)
            start = []
        loop = b.begin_loop(self.layout.groups, start)
        terms = self.group_terms(rows, loop.index, x)
        if start:
            pairs = zip(loop.carried, terms, strict=True)
            totals = b.end_loop(loop, [b.op("fadd", self.floats, *pair) for pair in pairs])
        else:
            for room, term in zip(self.memory, terms, strict=False):
                total = b.op("fadd", self.floats, b.load(self.floats, room, align=16), term)
                b.store(self.floats, total, room, align=16)
            b.end_loop(loop, [])
            totals = [b.load(self.floats, room, align=16) for room in self.memory[:count]]
        self.finish(rows, totals, out)

    def group_terms(self, rows: int, group: Value, x: Value) -> Iterator[Value]:
        """The sums of a group times both scales: for each row, for each vector.

        Each is added where it is computed, before the next one needs a register.
        """
        b, layout = self.b, self.layout
        at_w = b.at(self.weights, b.mul(group, layout.group_nbytes))
        at_x = b.at(x, b.mul(group, group_nbytes(layout.group)))
        initial = self.initial(rows, group, b.at(at_x, layout.group))
        sums = self.group_sums(rows, initial, b.at(at_w, layout.scales_nbytes), at_x)
        waiting, scales = iter(sums), self.scales(at_w)
        at_scale = b.at(at_x, layout.group + SUM_NBYTES)
        for row in range(rows):
            own = b.load("float", b.at(at_scale, row * self.x_stride))
            spread = b.broadcast(self.lanes, "float", own)
            for scale in scales:
                real = vectors.int_to_float(b, self.lanes, next(waiting))
                both = b.op("fmul", self.floats, spread, scale)
                yield b.op("fmul", self.floats, real, both)

    def initial(self, rows: int, group: Value, sums: Value) -> list[Value]:
        """The zero point times the negative sum of a group, from the address of the first row's."""
        b = self.b
        found: list[Value] = []
        points = [] if self.op.zero_points is None else self.zero_points(group)
        for row in range(rows):
            negative = b.load("i32", b.at(sums, row * self.x_stride), align=1)
            total = b.broadcast(self.lanes, "i32", negative)
            if points:
                found += [b.op("mul", self.ints, total, point) for point in points]
            else:
                shift = splat(self.ints, str(self.op.bits - 1))
                found += [b.op("shl", self.ints, total, shift)] * len(self.vectors)
        return found

    def group_sums(self, rows: int, sums: Sequence[Value], w: Value, x: Value) -> list[Value]:
        """The sums of a group, from the addresses of its weights and activations."""
        b, layout = self.b, self.layout
        unrolled = greatest_divisor(layout.steps, UNROLLED // layout.layers)
        loop = b.begin_loop(layout.steps // unrolled, [(self.dot.kind, s) for s in sums])
        at_w = b.at(w, b.mul(loop.index, unrolled * layout.step_nbytes))
        at_x = b.at(x, b.mul(loop.index, unrolled * layout.step))
        return b.end_loop(loop, self.some_steps(rows, loop.carried, unrolled, at_w, at_x))

    def some_steps(
        self, rows: int, sums: Sequence[Value], steps: int, w: Value, x: Value
    ) -> list[Value]:
        """Sums continued by some packed words of each channel."""
        b, layout, found = self.b, self.layout, list(sums)
        for step in range(steps):
            first = step * layout.step_nbytes
            packed = [
                b.load(self.dot.bytes_kind, b.at(w, first + v * 4 * self.lanes))
                for v in self.vectors
            ]
            for layer in range(layout.layers):
                word = (step * layout.layers + layer) * STEP_NBYTES
                codes = [self.codes(value, layer) for value in packed]
                self.add_products(rows, found, codes, b.at(x, word))
        return found

    def add_products(
        self, rows: int, sums: list[Value], codes: Sequence[tuple[Value, ...]], x: Value
    ) -> None:
        """Continue sums by four activations of each row."""
        for row in range(rows):
            four = self.signed.operand(self.b, self.b.at(x, row * self.x_stride))
            for position, weights in enumerate(codes):
                index = row * len(codes) + position
                sums[index] = self.dot.accumulate(self.b, sums[index], weights, four)

    def codes(self, packed: Value, layer: int) -> tuple[Value, ...]:
        """Codes of one word of each channel, as the operand of a dot product."""
        b, dot, bits = self.b, self.dot, self.op.bits
        if layer:
            words = b.cast("bitcast", dot.bytes_kind, packed, dot.words_kind)
            words = b.op("lshr", dot.words_kind, words, splat(dot.words_kind, str(layer * bits)))
            packed = b.cast("bitcast", dot.words_kind, words, dot.bytes_kind)
        if bits < 8:
            packed = b.op("and", dot.bytes_kind, packed, splat(dot.bytes_kind, str(2**bits - 1)))
        return dot.operand_of(b, packed)

    def finish(self, rows: int, totals: Sequence[Value], out: Value) -> None:
        """Totals plus the bias."""
        count = len(self.vectors)
        biased = [self.biased(i % count, total) for i, total in enumerate(totals)]
        self.store([biased[row * count :][:count] for row in range(rows)], out)
