"""``fill``: one value in all elements outside a box.

Sizes and distances are operands, so that frames of images of all sizes share a kernel: what stays
in the text is the value, how wide vectors are, and which loops there are.  A row ends with a vector
that may overlap the one before: both write the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, instruction_rules
from quantglow.backends.llvm.kernels.vector.nest import Axis, collapsed
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS, literal
from quantglow.instr.program import Fill, View
from quantglow.symbolic.size import careful, is_free, likely, surely_divides

FILL_ITEMS = 16
"""Shares into which a fill is cut; every box gives each item its part."""


@dataclass
class FillKernel:
    """Generator of one fill kernel."""

    step: Fill
    target: Target
    b: Builder = field(init=False, repr=False)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)

    def call(self) -> KernelCall:
        """``dst[outside interior] = value``"""
        self.base, self.table = self.b.kernel(2)
        elements = 0
        for box in self.step.boxes():
            elements += box.type.size
            if box.type.size:  # A frame around nothing has boxes of no height or width.
                self.box(box)
        items = FILL_ITEMS if elements else 0
        nbytes = elements * self.step.dst.type.dtype.nbytes
        pointers = (self.step.dst, np.array(self.sizes or [0], np.int64))
        return KernelCall(self.b.finish(), pointers, items, likely(nbytes) / 8, "fill")

    def operand(self, value: int) -> Value:
        """A number that is no part of the text."""
        if is_free(value):
            return str(value)
        self.sizes.append(value)
        return self.b.load_index(self.b.at(self.table, 8 * (len(self.sizes) - 1)))

    def box(self, box: View) -> None:
        """All rows of a box; its longest axis but the last is shared out."""
        b, itemsize = self.b, box.type.dtype.nbytes
        axes = collapsed(box.shape, (box,))
        first = b.at(self.base, self.operand((box.offset - self.step.dst.offset) * itemsize))
        outer, row = axes[:-1], axes[-1]
        if row.strides != (itemsize,):
            outer, row = axes, Axis(1, (itemsize,))
        nbytes = row.size * itemsize
        most = min(max(careful(nbytes), itemsize), self.target.vector_nbytes)
        wide = 1 << (most.bit_length() - 1)
        if nbytes < wide:
            raise AssertionError("the shape at hand is at least as wide")
        if not outer and nbytes > wide:
            self.rows(first, [Axis(nbytes // wide, (wide,))], wide, wide)
            last = b.at(first, self.operand(nbytes - wide))
            self.rows(last, [], wide, wide)
            return
        self.rows(first, sorted(outer, key=lambda axis: likely(axis.size)), nbytes, wide)

    def rows(self, first: Value, axes: list[Axis], nbytes: int, wide: int) -> None:
        """Rows of ``nbytes`` along axes, in vectors of ``wide`` bytes."""
        b = self.b
        if not axes:
            with b.when(b.compare("eq", b.index, "%begin", "0")):
                self.row(first, nbytes, wide)
            return
        *whole, shared = axes
        self.nest(first, whole, shared, nbytes, wide)

    def nest(self, at: Value, whole: list[Axis], shared: Axis, nbytes: int, wide: int) -> None:
        b, axis = self.b, whole[0] if whole else shared
        count, stride = self.operand(axis.size), self.operand(axis.strides[0])
        begin, end = ("0", count) if whole else self.share(count)
        with b.loop(begin, end) as index:
            moved = b.at(at, b.mul(index, stride))
            if whole:
                self.nest(moved, whole[1:], shared, nbytes, wide)
            else:
                self.row(moved, nbytes, wide)

    def share(self, count: Value) -> tuple[Value, Value]:
        """The part of ``count`` steps that belongs to the work items at hand."""
        b = self.b
        first, last = (b.divide(b.mul(i, count), FILL_ITEMS)[0] for i in ("%begin", "%end"))
        return first, last

    def row(self, at: Value, nbytes: int, wide: int) -> None:
        """One row; ``nbytes`` is at least ``wide``."""
        if nbytes > wide:
            with self.b.loop(0, self.operand(nbytes // wide)) as index:
                self.store(self.b.at(at, self.b.mul(index, wide)), wide)
        if nbytes == wide or not surely_divides(wide, nbytes):
            self.store(self.b.at(at, self.operand(nbytes - wide)) if nbytes > wide else at, wide)

    def store(self, at: Value, wide: int) -> None:
        dtype = self.step.dst.type.dtype
        element, lanes = ELEMENTS[dtype], wide // dtype.nbytes
        kind = vector(lanes, element)
        self.b.store(kind, splat(kind, literal(element, self.step.value)), at)


def emit_fill(step: Fill, target: Target) -> KernelCall:
    """``dst[outside interior] = value``"""
    return FillKernel(step, target).call()


instruction_rules[Fill] = emit_fill
