"""The forms of a depthwise convolution, and the choices that each has."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import Kernel
from quantglow.backends.llvm.kernels.contraction.tiling import Tile, all_cycles
from quantglow.backends.llvm.kernels.conv.conv import conv_kernel
from quantglow.backends.llvm.kernels.depthwise.element_kernel import ElementDepthwise
from quantglow.backends.llvm.kernels.depthwise.float_kernel import FloatDepthwise
from quantglow.backends.llvm.kernels.depthwise.integer_kernel import IntegerDepthwise
from quantglow.backends.llvm.kernels.depthwise.integer_plan import CARRIED, PASSES, choice_of
from quantglow.instr.program import Compute
from quantglow.ops import Conv

ELEMENTS, FLOATS = "elements", "columns"


class DepthwiseForms:
    """``Forms``: output rows and columns of a block, and vectors of channels."""

    names: Sequence[str] = (CARRIED, PASSES, ELEMENTS, FLOATS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, Conv) and step.op.depthwise

    def default(self, step: Compute, target: Target) -> Choice | None:
        """``Forms``"""
        kernel = conv_kernel(step, target)
        if isinstance(kernel, IntegerDepthwise):
            return choice_of(kernel.rows, kernel.blocks)
        if isinstance(kernel, FloatDepthwise):
            return Choice(_form_of(kernel), (1, kernel.most_columns, 1))
        return None

    def choices(self, step: Compute, target: Target) -> list[Choice]:
        """``Forms``"""
        kernel = conv_kernel(step, target)
        if isinstance(kernel, FloatDepthwise):
            form = _form_of(kernel)
            return [Choice(form, (1, columns, 1)) for columns in kernel.possible_columns]
        return kernel.possible_choices if isinstance(kernel, IntegerDepthwise) else []

    def kernel(self, step: Compute, target: Target, choice: Choice) -> Kernel | None:
        """``Forms``"""
        if choice not in self.choices(step, target):
            return None
        return self._made(step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: Choice) -> float:
        """``Forms``"""
        kernel = self._made(step, target, choice)
        if isinstance(kernel, IntegerDepthwise):
            return integer_cycles(kernel)
        kh, kw = kernel.conv.w.type.shape[:2]
        vectors = -(-kernel.y.channels // kernel.lanes)
        tile = Tile(1, kernel.most_columns, 1)
        cost = kernel.dot.cost
        return all_cycles(tile, kernel.y.height, kernel.y.width, vectors, kh * kw, cost)

    def _made(
        self, step: Compute, target: Target, choice: Choice
    ) -> IntegerDepthwise | FloatDepthwise:
        assert isinstance(step.op, Conv)
        if choice.form == ELEMENTS:
            return ElementDepthwise(step, step.op, target, choice)
        if choice.form == FLOATS:
            return FloatDepthwise(step, step.op, target, choice)
        return IntegerDepthwise(step, step.op, target, choice)


def _form_of(kernel: FloatDepthwise) -> str:
    return ELEMENTS if isinstance(kernel, ElementDepthwise) else FLOATS


def integer_cycles(kernel: IntegerDepthwise) -> float:
    """Cycles of an image: dot products, interleaving, and the ends of sums."""
    rows, blocks = kernel.rows, kernel.blocks
    read, kept = len(kernel.taps.read(blocks.columns)), len(kernel.taps.kept(blocks.columns))
    interleaved = (read - kept if blocks.carry else read) * len(rows.stacks)
    dots = kernel.pairs * len(kernel.column_taps) * blocks.columns
    ends = rows.outputs * blocks.columns * kernel.target.core.finish_of(1)
    # A stack is loaded once for all vectors, or for each pass.
    loads = rows.depth * len(blocks.passes) / blocks.vectors
    vector = dots * kernel.dot.cost.dot + interleaved * (SHUFFLES + loads) + ends
    vectors = sum(c.count * c.width for c in kernel.chunks) / kernel.channels * blocks.vectors
    groups = -(-kernel.y.height // rows.outputs)
    return groups * (kernel.y.width / blocks.columns) * vectors * vector


SHUFFLES = 2
"""Cycles to interleave a vector of a stack."""
