"""``GroupedMatMul`` of int8 or float32 rows with weights in groups, and ``QuantizeRows``.

Rows of int8 have an exact int32 sum for each group.  For float32 rows, codes become float32 in
registers; along K, products of a group are added one after the other, fused where the target can;
the group's sum times its scale is added to the total.

A work item of ``QuantizeRows`` is a row.  A group is read for its largest magnitude, then for its
codes.  Magnitudes are compared as integers, by their bits: NaN is above all numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct, WidenedDot
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.matmul.groupwise_panels import (
    WORD_NBYTES,
    GroupedProduct,
    greatest_divisor,
    zeros,
)
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.values import FLOAT, I8, I32, Operand, Type, Value, f32, splat, vector
from quantglow.ir.ops import GroupedMatMul, QuantizeRows
from quantglow.ir.ops.groupwise import GREATEST_FLOAT, LARGEST, SUM_NBYTES, group_nbytes
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import likely
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

UNROLLED = 8
"""Words of activations that one step of the loop takes."""
NARROW = 4
"""Codes of so many bits times int8 fit 16 bits by pairs: ``2 * 15 * 127``."""


@emits(GroupedMatMul)
def emit_grouped_matmul(step: Compute, target: Target) -> KernelCall:
    """A work item is a panel of channels."""
    assert isinstance(step.op, GroupedMatMul)
    kernel = GroupwiseIntegerProduct if step.op.is_dynamic else GroupwiseFloatProduct
    return kernel(target, step).call()


@emits(QuantizeRows)
def emit_quantize_rows(step: Compute, target: Target) -> KernelCall:
    """A work item is a row."""
    return RowQuantizer(target, step).call()


@dataclass
class RowQuantizer:
    """The kernel of one ``QuantizeRows``."""

    target: Target
    step: Compute
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        assert isinstance(self.step.op, QuantizeRows)
        self.group, (self.x,) = self.step.op.group, self.step.inputs
        self.rows, depth = self.x.shape
        self.depth = int(depth)
        self.groups = -(-self.depth // self.group)

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def ints(self) -> Type:
        return vector(self.lanes, I32)

    def call(self) -> KernelCall:
        work = float(likely(self.rows) * self.depth)
        views = (self.step.output, self.x)
        return KernelCall(self.text, views, self.rows, work, "quantize-rows", facts="")

    def text(self) -> str:
        b = self.b
        out, x = b.kernel(2)
        with b.loop("%begin", "%end") as row:
            at_x = b.at(x, b.mul(row, self.x.strides[0] * 4))
            at_out = b.at(out, b.mul(row, self.step.output.strides[0]))
            self.row(at_x, at_out)
        return b.finish()

    def row(self, x: Value, out: Value) -> None:
        b, whole = self.b, self.depth // self.group
        with b.loop(0, whole) as group:
            self.one_group(group, self.group, x, out)
        if whole < self.groups:
            self.one_group(str(whole), self.depth - whole * self.group, x, out)

    def one_group(self, group: Operand, length: int, x: Value, out: Value) -> None:
        """Codes, their negative sum and the scale of the first elements of a group."""
        b = self.b
        at_x = b.at(x, b.mul(group, 4 * self.group))
        at_codes = b.at(out, b.mul(group, group_nbytes(self.group)))
        largest = self.largest(at_x, length)
        factor = b.op("fdiv", FLOAT, f32(float(LARGEST)), largest)
        factor = vectors.number_or_less(b, 1, factor, float(GREATEST_FLOAT))
        total = self.codes(at_x, at_codes, b.broadcast(self.lanes, FLOAT, factor), length)
        at_sum = b.at(at_codes, self.group)
        b.store(I32, total, at_sum)
        scale = b.op("fdiv", FLOAT, largest, f32(float(LARGEST)))
        b.store(FLOAT, scale, b.at(at_sum, SUM_NBYTES))

    # -- the largest magnitude

    def largest(self, x: Value, length: int) -> Value:
        """The largest magnitude of some elements, NaN if there is one."""
        b, whole = self.b, length // self.lanes
        largest = splat(self.ints, "0")
        if whole:
            loop = b.begin_loop(whole, [(self.ints, largest)])
            at = b.at(x, b.mul(loop.index, 4 * self.lanes))
            (largest,) = b.end_loop(loop, [self.greater(loop.carried[0], at, self.lanes)])
        if remainder := length % self.lanes:
            largest = self.greater(largest, b.at(x, 4 * whole * self.lanes), remainder)
        name = f"llvm.vector.reduce.smax.{vector(self.lanes, I32).suffix}"
        return vectors.from_bits(b, 1, b.call(name, I32, (self.ints, largest)))

    def greater(self, largest: Value, x: Value, count: int) -> Value:
        """The greater of magnitudes, as integers."""
        b, kind = self.b, self.ints
        magnitude = b.op("and", kind, self.loaded(I32, x, count), splat(kind, str(0x7FFFFFFF)))
        name = f"llvm.smax.{vector(self.lanes, I32).suffix}"
        return b.call(name, kind, (kind, largest), (kind, magnitude))

    def loaded(self, element: Type, x: Value, count: int) -> Value:
        """The first elements of a vector, then zeros."""
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, element)
        value = load_partial(b, self.target, element, lanes, count, x)
        if count == lanes:
            return value
        zero = splat(kind, "0" if element == I32 else f32(0.0))
        return b.shuffle(kind, value, zero, [i if i < count else lanes + i for i in range(lanes)])

    # -- codes

    def codes(self, x: Value, out: Value, factors: Value, length: int) -> Value:
        """Write the codes of a group, zeros behind its elements; their negative sum."""
        b, lanes, sums = self.b, self.lanes, splat(self.ints, "0")
        if whole := length // lanes:
            loop = b.begin_loop(whole, [(self.ints, sums)])
            at_x, at_out = (b.at(p, b.mul(loop.index, n * lanes)) for p, n in ((x, 4), (out, 1)))
            code_sums = self.vector(at_x, at_out, factors, loop.carried[0], lanes)
            (sums,) = b.end_loop(loop, [code_sums])
        for start in range(whole * lanes, self.group, lanes):
            at = b.at(out, start)
            if start < length:
                sums = self.vector(b.at(x, 4 * start), at, factors, sums, length - start)
            else:
                b.store(vector(lanes, I8), splat(vector(lanes, I8), "0"), at)
        return self.negative(sums)

    def vector(self, x: Value, out: Value, factors: Value, sums: Value, count: int) -> Value:
        """Write the codes of a vector; the sums continued by them."""
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, FLOAT)
        steps = b.op("fmul", kind, self.loaded(FLOAT, x, count), factors)
        bytes_kind = vector(lanes, I8)
        codes = b.cast(
            "trunc", self.ints, self.target.isa.round_to_int(b, lanes, steps), bytes_kind
        )
        b.store(bytes_kind, codes, out)
        return b.op("add", self.ints, sums, b.cast("sext", bytes_kind, codes, self.ints))

    def negative(self, sums: Value) -> Value:
        name = f"llvm.vector.reduce.add.{vector(self.lanes, I32).suffix}"
        return self.b.op("sub", I32, "0", self.b.call(name, I32, (self.ints, sums)))


class GroupwiseFloatProduct(GroupedProduct):
    """Each code is shifted out of its word, centered and converted."""

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(DType.F32)

    def tile(self, rows: int, x: Value, out: Value) -> None:
        b, layout, count = self.b, self.layout, rows * len(self.vectors)
        last_length = int(self.x.shape[1]) - (layout.groups - 1) * layout.group
        whole = layout.groups if last_length == layout.group else layout.groups - 1
        totals: Sequence[Value] = [zeros(self.floats)] * count
        if whole:
            loop = b.begin_loop(whole, [(self.floats, t) for t in totals])
            terms = self.group_terms(rows, loop.index, x, layout.group)
            totals = b.end_loop(loop, self.added(loop.carried, terms))
        if whole < layout.groups:
            totals = self.added(totals, self.group_terms(rows, str(whole), x, last_length))
        results = [self.biased(i % len(self.vectors), total) for i, total in enumerate(totals)]
        step = len(self.vectors)
        self.store([results[i : i + step] for i in range(0, count, step)], out)

    def added(self, totals: Sequence[Value], terms: Sequence[Value]) -> list[Value]:
        pairs = zip(totals, terms, strict=True)
        return [self.b.op("fadd", self.floats, *pair) for pair in pairs]

    def group_terms(self, rows: int, group: Operand, x: Value, length: int) -> list[Value]:
        """The sums of the first products of a group times its scales."""
        b, layout = self.b, self.layout
        at_group = b.at(self.weights, b.mul(group, layout.group_nbytes))
        at_w, at_x = b.at(at_group, layout.scales_nbytes), b.at(x, b.mul(group, 4 * layout.group))
        points = self.int_points(group)
        sums: list[Value] = [zeros(self.floats)] * (rows * len(self.vectors))
        whole, remainder = divmod(length, layout.step)
        if whole:
            loop = b.begin_loop(whole, [(self.floats, s) for s in sums])
            step_w = b.at(at_w, b.mul(loop.index, layout.step_nbytes))
            step_x = b.at(at_x, b.mul(loop.index, 4 * layout.step))
            sums = self.step_sums(rows, list(loop.carried), step_w, step_x, points, layout.step)
            sums = b.end_loop(loop, sums)
        if remainder:
            at_w, at_x = b.at(at_w, whole * layout.step_nbytes), b.at(at_x, 4 * whole * layout.step)
            sums = self.step_sums(rows, sums, at_w, at_x, points, remainder)
        scales = self.scales(at_group)
        return [
            b.op("fmul", self.floats, total, scales[i % len(scales)])
            for i, total in enumerate(sums)
        ]

    def int_points(self, group: Operand) -> list[Value]:
        """Zero points of the panel as int32."""
        if self.op.zero_points is not None:
            return self.zero_points(group)
        return [splat(self.ints, str(self.op.midpoint))] * len(self.vectors)

    def step_sums(
        self,
        rows: int,
        sums: list[Value],
        w: Value,
        x: Value,
        points: Sequence[Value],
        count: int,
    ) -> list[Value]:
        """Sums continued by the first ``count`` codes of a word of each channel."""
        b = self.b
        packed = [b.load(self.ints, b.at(w, v * 4 * self.lanes)) for v in self.vectors]
        for index in range(count):
            weights = [
                self.weight(word, index, point) for word, point in zip(packed, points, strict=True)
            ]
            for row in range(rows):
                one = self.dot.operand(b, b.at(x, row * self.x_stride + 4 * index))
                for position, weight in enumerate(weights):
                    at = row * len(weights) + position
                    sums[at] = self.dot.accumulate(b, sums[at], one, (weight,))
        return sums

    def weight(self, word: Value, index: int, point: Value) -> Value:
        """Code ``index`` of a word of each channel, less its zero point, as float32."""
        b, bits = self.b, self.op.bits
        layer, byte = divmod(index, WORD_NBYTES)
        shift = 8 * byte + bits * layer
        if shift:
            word = b.op("lshr", self.ints, word, splat(self.ints, str(shift)))
        if shift + bits < 32:
            word = b.op("and", self.ints, word, splat(self.ints, str(2**bits - 1)))
        return vectors.int_to_float(b, self.lanes, b.op("sub", self.ints, word, point))


class GroupwiseIntegerProduct(GroupedProduct):
    """Codes are the unsigned operand of a dot product of bytes, activations the signed one.

    A sum starts as the zero point times the negative sum of the activations.
    """

    @property
    def most_rows(self) -> int:
        return 12 if self.target.registers >= 32 else 4

    @cached_property
    def dot(self) -> DotProduct:
        plain, isa = self.target.dot_product(DType.U8), self.target.isa
        if self.op.bits <= NARROW and not plain.widen and not isa.unsigned_activations:
            return self.target.dot_product(DType.I8)  # Such codes are the same, signed or not.
        if not plain.widen or self.op.bits > NARROW:
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

    def group_terms(self, rows: int, group: Operand, x: Value) -> Iterator[Value]:
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
            row_scale = b.load(FLOAT, b.at(at_scale, row * self.x_stride))
            spread = b.broadcast(self.lanes, FLOAT, row_scale)
            for scale in scales:
                real = vectors.int_to_float(b, self.lanes, next(waiting))
                both = b.op("fmul", self.floats, spread, scale)
                yield b.op("fmul", self.floats, real, both)

    def initial(self, rows: int, group: Operand, sums: Value) -> list[Value]:
        """The zero point times the negative sum of a group, from the address of the first row's."""
        b = self.b
        corrections: list[Value] = []
        points = [] if self.op.zero_points is None else self.zero_points(group)
        for row in range(rows):
            negative = b.load(I32, b.at(sums, row * self.x_stride), align=1)
            total = b.broadcast(self.lanes, I32, negative)
            if points:
                corrections += [b.op("mul", self.ints, total, point) for point in points]
            else:
                shift = splat(self.ints, str(self.op.bits - 1))
                corrections += [b.op("shl", self.ints, total, shift)] * len(self.vectors)
        return corrections

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
        b, layout, totals = self.b, self.layout, list(sums)
        for step in range(steps):
            first = step * layout.step_nbytes
            packed = [
                b.load(self.dot.bytes_kind, b.at(w, first + v * 4 * self.lanes))
                for v in self.vectors
            ]
            for layer in range(layout.layers):
                word = (step * layout.layers + layer) * STEP_NBYTES
                codes = [self.codes(value, layer) for value in packed]
                self.add_products(rows, totals, codes, b.at(x, word))
        return totals

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
        return dot.to_operand(b, packed)

    def finish(self, rows: int, totals: Sequence[Value], out: Value) -> None:
        """Totals plus the bias."""
        count = len(self.vectors)
        biased = [self.biased(i % count, total) for i, total in enumerate(totals)]
        self.store([biased[row * count :][:count] for row in range(rows)], out)
