"""The forms of a product of activations, and the choices that each has."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.contraction.tiling import Tile, all_cycles
from quantglow.backends.llvm.kernels.matmul.byte_products import ByteProduct
from quantglow.backends.llvm.kernels.matmul.float_products import FloatProduct
from quantglow.backends.llvm.kernels.matmul.matmul import matmul_kernel, product
from quantglow.backends.llvm.kernels.matmul.product import Product
from quantglow.backends.llvm.kernels.matmul.turned_products import TurnedProduct
from quantglow.backends.llvm.kernels.matmul.word_products import WordProduct
from quantglow.instr.program import Compute
from quantglow.ops import MatMul

FORMS: dict[str, type[Product]] = {
    "turned": TurnedProduct,
    "floats": FloatProduct,
    "bytes": ByteProduct,
    "words": WordProduct,
}


class MatMulForms:
    """``Forms``: rows of a tile, and vectors of columns of a panel."""

    names: Sequence[str] = tuple(FORMS)

    def takes(self, step: Compute, target: Target) -> bool:
        """``Forms``"""
        return isinstance(step.op, MatMul)

    def default(self, step: Compute, target: Target) -> Choice | None:
        """``Forms``"""
        kernel = matmul_kernel(step, target)
        (form,) = (name for name, kind in FORMS.items() if type(kernel) is kind)
        return Choice(form, (kernel.tile_rows, 1, kernel.panel))

    def choices(self, step: Compute, target: Target) -> list[Choice]:
        """``Forms``"""
        default = self.default(step, target)
        found = {} if default is None else {default: None}
        for name in self._names(step, target):
            tiles = product(FORMS[name], step, target).possible_tiles
            found |= {Choice(name, (tile.rows, 1, tile.vectors)): None for tile in tiles}
        return list(found)

    def kernel(self, step: Compute, target: Target, choice: Choice) -> Product | None:
        """``Forms``"""
        if choice not in self.choices(step, target):
            return None
        return product(FORMS[choice.form], step, target, choice)

    def cycles(self, step: Compute, target: Target, choice: Choice) -> float:
        """``Forms``"""
        kernel = product(FORMS[choice.form], step, target, choice)
        tile = Tile(1, kernel.tile_rows, kernel.panel)
        return all_cycles(tile, 1, kernel.rows, kernel.vectors, kernel.steps, kernel.cost)

    def _names(self, step: Compute, target: Target) -> list[str]:
        """The forms that exist.  One whose columns lie as rows has no other."""
        names = [name for name, form in FORMS.items() if product(form, step, target).applies]
        return names[:1] if names[0] == "turned" else names
