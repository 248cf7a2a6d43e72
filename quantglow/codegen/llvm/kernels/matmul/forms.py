"""``MatMul`` of activations: kernels in order of preference, and the tunable choices of each.

A work item is a panel of columns of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits, first_kernel
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile, all_cycles
from quantglow.codegen.llvm.kernels.matmul.byte_products import ByteProduct
from quantglow.codegen.llvm.kernels.matmul.float_products import FloatProduct, TransposedProduct
from quantglow.codegen.llvm.kernels.matmul.product import MatrixProduct
from quantglow.codegen.llvm.kernels.matmul.word_products import WordProduct
from quantglow.ir.ops import MatMul
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import forgetting_guards, likely

KERNELS: tuple[type[MatrixProduct], ...] = (
    TransposedProduct,
    FloatProduct,
    ByteProduct,
    WordProduct,
)
"""In the order in which they are tried; the last one takes all integers."""

FORMS: dict[str, type[MatrixProduct]] = {
    "turned": TransposedProduct,
    "floats": FloatProduct,
    "bytes": ByteProduct,
    "words": WordProduct,
}


@emits(MatMul)
def emit_matmul(step: Compute, target: Target) -> KernelCall:
    """One work item for each batch and panel of columns."""
    return _matmul_kernel(step, target).call()


def _matmul_kernel(step: Compute, target: Target) -> MatrixProduct:
    """The first kernel that takes a product."""
    return first_kernel(partial(product, form, step, target) for form in KERNELS)


def product(
    form: type[MatrixProduct], step: Compute, target: Target, chosen: KernelChoice | None = None
) -> MatrixProduct:
    """The kernel of a form."""
    op, (x, y) = step.op, step.inputs
    assert isinstance(op, MatMul)
    return form(Builder(index=target.isa.index), target, op, x, y, step.output, chosen)


class MatMulForms:
    """``Forms``: rows of a tile, and vectors of columns of a panel."""

    names: Sequence[str] = tuple(FORMS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, MatMul)

    def default(self, step: Compute, target: Target) -> KernelChoice | None:
        """``Forms``"""
        kernel = _matmul_kernel(step, target)
        (form,) = (name for name, kind in FORMS.items() if type(kernel) is kind)
        return KernelChoice(form, (kernel.tile_rows, 1, kernel.panel))

    def choices(self, step: Compute, target: Target) -> list[KernelChoice]:
        """``Forms``"""
        default = self.default(step, target)
        choices = {} if default is None else {default: None}
        for name in self._names(step, target):
            tiles = product(FORMS[name], step, target).possible_tiles
            choices |= {KernelChoice(name, (tile.rows, 1, tile.vectors)): None for tile in tiles}
        return list(choices)

    def kernel(self, step: Compute, target: Target, choice: KernelChoice) -> MatrixProduct | None:
        """``Forms``"""
        with forgetting_guards(step.output.shape):  # other forms decide nothing of this kernel
            is_choice = choice in self.choices(step, target)
        if not is_choice:
            return None
        return product(FORMS[choice.form], step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: KernelChoice) -> float:
        """``Forms``"""
        kernel = product(FORMS[choice.form], step, target, choice)
        tile = Tile(1, kernel.tile_rows, kernel.panel)
        rows, steps = likely(kernel.rows), likely(kernel.steps)
        return all_cycles(tile, 1, rows, kernel.vectors, steps, kernel.cost)

    def _names(self, step: Compute, target: Target) -> list[str]:
        """The forms that exist.  One whose columns lie as rows has no other."""
        names = [name for name, form in FORMS.items() if product(form, step, target).applies]
        return names[:1] if names[0] == "turned" else names
