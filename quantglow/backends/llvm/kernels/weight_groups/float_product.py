"""Products of float32 rows with codes of weights, which become float32 in registers.

Along K, products of a group are added one after the other, fused where the target can; the group's
sum times its scale is added to the total.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Value, splat
from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.backends.llvm.kernels.weight_groups.packing import WORD_NBYTES
from quantglow.backends.llvm.kernels.weight_groups.product import GroupedProduct, zeros
from quantglow.lazy import cached_property
from quantglow.types import DType


class FloatProduct(GroupedProduct):
    """Each code is shifted out of its word, centred and converted."""

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(DType.F32)

    def tile(self, rows: int, x: Value, out: Value) -> None:
        b, layout, count = self.b, self.layout, rows * len(self.vectors)
        rest = self.x.shape[1] - (layout.groups - 1) * layout.group
        whole = layout.groups if rest == layout.group else layout.groups - 1
        totals: Sequence[Value] = [zeros(self.floats)] * count
        if whole:
            loop = b.begin_loop(whole, [(self.floats, t) for t in totals])
            terms = self.group_terms(rows, loop.index, x, layout.group)
            totals = b.end_loop(loop, self.added(loop.carried, terms))
        if whole < layout.groups:
            totals = self.added(totals, self.group_terms(rows, str(whole), x, rest))
        found = [self.biased(i % len(self.vectors), total) for i, total in enumerate(totals)]
        step = len(self.vectors)
        self.store([found[i : i + step] for i in range(0, count, step)], out)

    def added(self, totals: Sequence[Value], terms: Sequence[Value]) -> list[Value]:
        pairs = zip(totals, terms, strict=True)
        return [self.b.op("fadd", self.floats, *pair) for pair in pairs]

    def group_terms(self, rows: int, group: Value, x: Value, length: int) -> list[Value]:
        """The sums of the first products of a group times its scales."""
        b, layout = self.b, self.layout
        at_group = b.at(self.weights, b.mul(group, layout.group_nbytes))
        at_w, at_x = b.at(at_group, layout.scales_nbytes), b.at(x, b.mul(group, 4 * layout.group))
        points = self.int_points(group)
        sums: list[Value] = [zeros(self.floats)] * (rows * len(self.vectors))
        whole, rest = divmod(length, layout.step)
        if whole:
            loop = b.begin_loop(whole, [(self.floats, s) for s in sums])
            step_w = b.at(at_w, b.mul(loop.index, layout.step_nbytes))
            step_x = b.at(at_x, b.mul(loop.index, 4 * layout.step))
            sums = self.step_sums(rows, list(loop.carried), step_w, step_x, points, layout.step)
            sums = b.end_loop(loop, sums)
        if rest:
            at_w, at_x = b.at(at_w, whole * layout.step_nbytes), b.at(at_x, 4 * whole * layout.step)
            sums = self.step_sums(rows, sums, at_w, at_x, points, rest)
        scales = self.scales(at_group)
        return [
            b.op("fmul", self.floats, total, scales[i % len(scales)])
            for i, total in enumerate(sums)
        ]

    def int_points(self, group: Value) -> list[Value]:
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
