"""Kernels of convolutions in order of preference, and the tunable choices of each form.

``ConvForms`` and ``DepthwiseForms`` have the forms, tiles and blocks between which tuning chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import Kernel, KernelCall, emits, first_kernel
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile, all_cycles, all_shared_cycles
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import PREFETCHES, UNROLL, ConvKernel
from quantglow.codegen.llvm.kernels.conv.matrix_tiles import TilesConvKernel
from quantglow.codegen.llvm.kernels.conv.pair_products import BlockConvKernel, PairsConvKernel
from quantglow.codegen.llvm.kernels.conv.row_products import RowsConvKernel
from quantglow.codegen.llvm.kernels.conv.streamed import MergedConvKernel
from quantglow.codegen.llvm.kernels.conv.uneven_channels import GatheredConvKernel, SharedConvKernel
from quantglow.codegen.llvm.kernels.depthwise.channel_kernels import (
    ElementDepthwise,
    FloatDepthwise,
    TapDepthwise,
)
from quantglow.codegen.llvm.kernels.depthwise.integer_kernel import IntegerDepthwise
from quantglow.codegen.llvm.kernels.depthwise.integer_plan import CARRIED, PASSES, block_choice
from quantglow.codegen.llvm.kernels.depthwise.window_kernel import WindowDepthwise
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import likely

KERNELS = (
    ElementDepthwise,
    WindowDepthwise,
    TapDepthwise,
    IntegerDepthwise,
    FloatDepthwise,
    PairsConvKernel,
    TilesConvKernel,
    MergedConvKernel,
    RowsConvKernel,
    GatheredConvKernel,
    SharedConvKernel,
    BlockConvKernel,
    ConvKernel,
)
"""The last one takes every convolution."""

FORMS: dict[str, type[ConvKernel]] = {
    "pairs": PairsConvKernel,
    "matrix": TilesConvKernel,
    "gathered": GatheredConvKernel,
    "shared": SharedConvKernel,
    "blocks": BlockConvKernel,
    "plain": ConvKernel,
}
"""Forms in the order of preference, see ``KERNELS``."""

FIXED = ("matrix",)
"""Forms whose tile follows from the size of their registers."""
UNROLLED = ("shared", "plain")
"""Forms whose inner loop can have a body of any number of steps."""
UNROLLS = (2, 4, 8)

ELEMENTS, FLOATS = "elements", "columns"
"""Forms of depthwise convolutions of integers by elements, and of float32."""

SHUFFLES = 2
"""Cycles to interleave a vector of a stack."""


@emits(Conv)
def emit_conv(step: Compute, target: Target) -> KernelCall:
    """Depthwise convolutions have kernels of their own; all others are implicit GEMMs."""
    return conv_kernel(step, target).call()


def conv_kernel(step: Compute, target: Target) -> Kernel:
    """The first kernel that takes a convolution."""
    assert isinstance(step.op, Conv)
    return first_kernel(partial(kernel, step, step.op, target) for kernel in KERNELS)


class ConvForms:
    """``Forms``: tiles of pixels and vectors, orders, unrolling and prefetching."""

    names: Sequence[str] = tuple(FORMS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, Conv) and not step.op.depthwise

    def default(self, step: Compute, target: Target) -> KernelChoice | None:
        """``Forms``"""
        kernel = conv_kernel(step, target)
        if not isinstance(kernel, ConvKernel) or type(kernel) not in FORMS.values():
            return None
        return _choice_in(kernel)

    def choices(self, step: Compute, target: Target) -> list[KernelChoice]:
        """``Forms``"""
        assert isinstance(step.op, Conv)
        kernels = ((name, form(step, step.op, target)) for name, form in FORMS.items())
        return [c for name, kernel in kernels if kernel.exists for c in _choices(name, kernel)]

    def kernel(self, step: Compute, target: Target, choice: KernelChoice) -> ConvKernel | None:
        """``Forms``"""
        return choose_kernel(step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: KernelChoice) -> float:
        """``Forms``"""
        kernel = choose_kernel(step, target, choice)
        assert kernel is not None
        return _modeled_cycles(kernel)


def choose_kernel(step: Compute, target: Target, choice: KernelChoice) -> ConvKernel | None:
    """The kernel of a choice, of which any field may be None; None where the convolution has no
    such choice."""
    if (form := FORMS.get(choice.form)) is None:
        return None
    assert isinstance(step.op, Conv)
    kernel = form(step, step.op, target, choice)
    return kernel if is_allowed(kernel, choice) else None


def is_allowed(kernel: ConvKernel, choice: KernelChoice) -> bool:
    """Whether each field of a choice is one that its form has."""
    if choice.unroll is not None and (choice.form not in UNROLLED or choice.unroll not in UNROLLS):
        return False
    if choice.prefetch is not None and (choice.form in FIXED or choice.prefetch not in PREFETCHES):
        return False
    fixed = choice.form in FIXED
    if choice.tile is not None and (fixed or Tile(*choice.tile) not in kernel.possible_tiles):
        return False
    return kernel.exists


def _choices(form: str, kernel: ConvKernel) -> Iterator[KernelChoice]:
    tiles: Sequence[tuple[int, int, int] | None] = (None,)
    if form not in FIXED:
        tiles = [(tile.rows, tile.columns, tile.vectors) for tile in kernel.possible_tiles]
    unrolls: Sequence[int | None] = (None,)
    if form in UNROLLED:
        unrolls = _unrolls(kernel.geometry.runs.steps)
    for tile in tiles:
        for outer in (False, True):
            placed = replace(kernel, chosen=KernelChoice(form, tile, outer))
            if (outer and placed.all_panels == 1) or not placed.exists:
                continue
            far = placed.weights_are_far and form not in FIXED
            for unroll in unrolls:
                for prefetch in PREFETCHES if far else (None,):
                    yield KernelChoice(form, tile, outer, unroll, prefetch)


def _unrolls(steps: int) -> list[int]:
    """Numbers of unrolled steps with different code for a run of ``steps``."""
    by_length: dict[int, int] = {}
    for unroll in (UNROLL, *UNROLLS):
        by_length.setdefault(unroll if steps // unroll > 1 else steps, unroll)
    return sorted(by_length.values())


def _choice_in(kernel: ConvKernel) -> KernelChoice:
    """The choice that a kernel is made with, the fields that its form has filled in."""
    (form,) = (name for name, kind in FORMS.items() if type(kernel) is kind)
    tile, steps = kernel.tile, kernel.geometry.runs.steps
    same = [u for u in _unrolls(steps) if u == kernel.unroll or steps // u <= 1]
    far = kernel.weights_are_far and form not in FIXED
    return KernelChoice(
        form,
        None if form in FIXED else (tile.rows, tile.columns, tile.vectors),
        kernel.panels_outer and kernel.all_panels > 1,
        min(same) if form in UNROLLED else None,
        kernel.prefetching if far else None,
    )


def _modeled_cycles(kernel: ConvKernel) -> float:
    """Cycles of the cost model; 0 for forms without one, which the rules prefer."""
    if isinstance(kernel, TilesConvKernel):
        return 0.0
    work = (*kernel.image_size, kernel.vectors, kernel.total_steps, kernel.dot.cost)
    if isinstance(kernel, SharedConvKernel):
        return all_shared_cycles(kernel.tile.columns, *work)
    return kernel.conv.group * all_cycles(kernel.tile, *work)


class DepthwiseForms:
    """``Forms``: output rows and columns of a block, and vectors of channels."""

    names: Sequence[str] = (CARRIED, PASSES, ELEMENTS, FLOATS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, Conv) and step.op.depthwise

    def default(self, step: Compute, target: Target) -> KernelChoice | None:
        """``Forms``"""
        kernel = conv_kernel(step, target)
        if isinstance(kernel, IntegerDepthwise):
            return block_choice(kernel.rows, kernel.blocks)
        if isinstance(kernel, FloatDepthwise):
            return KernelChoice(_form_name(kernel), (1, kernel.most_columns, 1))
        return None

    def choices(self, step: Compute, target: Target) -> list[KernelChoice]:
        """``Forms``"""
        kernel = conv_kernel(step, target)
        if isinstance(kernel, FloatDepthwise):
            form = _form_name(kernel)
            return [KernelChoice(form, (1, columns, 1)) for columns in kernel.possible_columns]
        return kernel.possible_choices if isinstance(kernel, IntegerDepthwise) else []

    def kernel(self, step: Compute, target: Target, choice: KernelChoice) -> Kernel | None:
        """``Forms``"""
        if choice not in self.choices(step, target):
            return None
        return self._made(step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: KernelChoice) -> float:
        """``Forms``"""
        kernel = self._made(step, target, choice)
        if isinstance(kernel, IntegerDepthwise):
            return _integer_cycles(kernel)
        kh, kw = kernel.conv.w.type.fixed_shape[:2]
        vectors = -(-kernel.y.channels // kernel.lanes)
        tile = Tile(1, kernel.most_columns, 1)
        height, width = likely(kernel.y.height), likely(kernel.y.width)
        return all_cycles(tile, height, width, vectors, kh * kw, kernel.dot.cost)

    def _made(
        self, step: Compute, target: Target, choice: KernelChoice
    ) -> IntegerDepthwise | FloatDepthwise:
        assert isinstance(step.op, Conv)
        if choice.form == ELEMENTS:
            return ElementDepthwise(step, step.op, target, choice)
        if choice.form == FLOATS:
            return FloatDepthwise(step, step.op, target, choice)
        return IntegerDepthwise(step, step.op, target, choice)


def _form_name(kernel: FloatDepthwise) -> str:
    return ELEMENTS if isinstance(kernel, ElementDepthwise) else FLOATS


def _integer_cycles(kernel: IntegerDepthwise) -> float:
    """Cycles of an image: dot products, interleaving, and the ends of sums."""
    rows, blocks = kernel.rows, kernel.blocks
    read, shared = len(kernel.taps.read(blocks.columns)), len(kernel.taps.shared(blocks.columns))
    interleaved = (read - shared if blocks.carry else read) * len(rows.stacks)
    dots = kernel.pairs * len(kernel.column_taps) * blocks.columns
    ends = rows.outputs * blocks.columns * kernel.target.core.finish_cycles(1)
    # A stack is loaded once for all vectors, or for each pass.
    loads = rows.depth * len(blocks.passes) / blocks.vectors
    vector = dots * kernel.dot.cost.dot + interleaved * (SHUFFLES + loads) + ends
    vectors = sum(c.count * c.width for c in kernel.chunks) / kernel.channels * blocks.vectors
    groups = -(-likely(kernel.y.height) // rows.outputs)
    return groups * (likely(kernel.y.width) / blocks.columns) * vectors * vector
