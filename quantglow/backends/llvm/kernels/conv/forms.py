"""The forms of a convolution that is not depthwise, and the choices that each has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.contraction.tiling import (
    Tile,
    all_cycles,
    all_shared_cycles,
)
from quantglow.backends.llvm.kernels.conv.conv import conv_kernel
from quantglow.backends.llvm.kernels.conv.gathered_rows import GatheredConvKernel
from quantglow.backends.llvm.kernels.conv.implicit_gemm import PREFETCHES, UNROLL, ConvKernel
from quantglow.backends.llvm.kernels.conv.matrix_tiles import TilesConvKernel
from quantglow.backends.llvm.kernels.conv.pair_sums import PairsConvKernel
from quantglow.backends.llvm.kernels.conv.pixel_pairs import BlockConvKernel
from quantglow.backends.llvm.kernels.conv.split_vectors import SharedConvKernel
from quantglow.instr.program import Compute
from quantglow.ops import Conv

FORMS: dict[str, type[ConvKernel]] = {
    "pairs": PairsConvKernel,
    "matrix": TilesConvKernel,
    "gathered": GatheredConvKernel,
    "shared": SharedConvKernel,
    "blocks": BlockConvKernel,
    "plain": ConvKernel,
}
"""Forms in the order of preference, see ``conv.KERNELS``."""

FIXED = ("matrix",)
"""Forms whose tile follows from the size of their registers."""
UNROLLED = ("shared", "plain")
"""Forms whose inner loop can have a body of any number of steps."""
UNROLLS = (2, 4, 8)


class ConvForms:
    """``Forms``: tiles of pixels and vectors, orders, unrolling and prefetching."""

    names: Sequence[str] = tuple(FORMS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, Conv) and not step.op.depthwise

    def default(self, step: Compute, target: Target) -> Choice | None:
        """``Forms``"""
        found = conv_kernel(step, target)
        if not isinstance(found, ConvKernel) or type(found) not in FORMS.values():
            return None
        return choice_in(found)

    def choices(self, step: Compute, target: Target) -> list[Choice]:
        """``Forms``"""
        assert isinstance(step.op, Conv)
        kernels = ((name, form(step, step.op, target)) for name, form in FORMS.items())
        return [c for name, kernel in kernels if kernel.exists for c in _choices(name, kernel)]

    def kernel(self, step: Compute, target: Target, choice: Choice) -> ConvKernel | None:
        """``Forms``"""
        return kernel_of(step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: Choice) -> float:
        """``Forms``"""
        kernel = kernel_of(step, target, choice)
        assert kernel is not None
        return modelled_cycles(kernel)


def kernel_of(step: Compute, target: Target, choice: Choice) -> ConvKernel | None:
    """The kernel of a choice, of which any field may be None; None where the convolution has no
    such choice."""
    if (form := FORMS.get(choice.form)) is None:
        return None
    assert isinstance(step.op, Conv)
    kernel = form(step, step.op, target, choice)
    return kernel if is_allowed(kernel, choice) else None


def is_allowed(kernel: ConvKernel, choice: Choice) -> bool:
    """Whether each field of a choice is one that its form has."""
    if choice.unroll is not None and (choice.form not in UNROLLED or choice.unroll not in UNROLLS):
        return False
    if choice.prefetch is not None and (choice.form in FIXED or choice.prefetch not in PREFETCHES):
        return False
    fixed = choice.form in FIXED
    if choice.tile is not None and (fixed or Tile(*choice.tile) not in kernel.possible_tiles):
        return False
    return kernel.exists


def _choices(form: str, kernel: ConvKernel) -> Iterator[Choice]:
    tiles: Sequence[tuple[int, int, int] | None] = (None,)
    if form not in FIXED:
        tiles = [(tile.rows, tile.columns, tile.vectors) for tile in kernel.possible_tiles]
    unrolls: Sequence[int | None] = (None,)
    if form in UNROLLED:
        unrolls = _unrolls(kernel.geometry.runs.steps)
    for tile in tiles:
        for outer in (False, True):
            placed = replace(kernel, chosen=Choice(form, tile, outer))
            if (outer and placed.all_panels == 1) or not placed.exists:
                continue
            far = placed.weights_are_far and form not in FIXED
            for unroll in unrolls:
                for prefetch in PREFETCHES if far else (None,):
                    yield Choice(form, tile, outer, unroll, prefetch)


def _unrolls(steps: int) -> list[int]:
    """Numbers of unrolled steps with different code for a run of ``steps``."""
    found: dict[int, int] = {}
    for unroll in (UNROLL, *UNROLLS):
        found.setdefault(unroll if steps // unroll > 1 else steps, unroll)
    return sorted(found.values())


def choice_in(kernel: ConvKernel) -> Choice:
    """The choice that a kernel is made with, the fields that its form has filled in."""
    (form,) = (name for name, kind in FORMS.items() if type(kernel) is kind)
    tile, steps = kernel.tile, kernel.geometry.runs.steps
    same = [u for u in _unrolls(steps) if u == kernel.unroll or steps // u <= 1]
    far = kernel.weights_are_far and form not in FIXED
    return Choice(
        form,
        None if form in FIXED else (tile.rows, tile.columns, tile.vectors),
        kernel.panels_outer and kernel.all_panels > 1,
        min(same) if form in UNROLLED else None,
        kernel.prefetching if far else None,
    )


def modelled_cycles(kernel: ConvKernel) -> float:
    """Cycles of the cost model; 0 for forms without one, which the rules prefer."""
    if isinstance(kernel, TilesConvKernel):
        return 0.0
    work = (*kernel.image_size, kernel.vectors, kernel.total_steps, kernel.dot.cost)
    if isinstance(kernel, SharedConvKernel):
        return all_shared_cycles(kernel.tile.columns, *work)
    return kernel.conv.group * all_cycles(kernel.tile, *work)
