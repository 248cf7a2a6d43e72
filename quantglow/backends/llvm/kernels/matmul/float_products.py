"""Products of activations in float32."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Value, f32, splat, vector
from quantglow.backends.llvm.isa.costs import StepCost
from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.kernels.matmul.product import Columns, Product
from quantglow.lazy import cached_property
from quantglow.types import DType


class FloatProduct(Product):
    """Sums in float32, fused where the target can."""

    @property
    def applies(self) -> bool:
        return self.op.x.type.dtype.is_float

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(DType.F32)

    @property
    def cost(self) -> StepCost:
        return self.dot.cost

    def tile(self, rows: int, out: Value, x: Value, y: Value, panel: Sequence[Columns]) -> None:
        b, kind = self.b, vector(self.lanes, "float")
        zeros = [(kind, splat(kind, f32(0.0)))] * (rows * len(panel))
        loop = b.begin_loop(self.depth, zeros)
        at_x = b.at(x, b.mul(loop.index, self.strides(self.x)[2]))
        right = self.right(y, loop.index, panel)
        sums: list[Value] = []
        for row in range(rows):
            scalar = b.load("float", self.row_at(at_x, row, self.strides(self.x)[1]))
            left = b.broadcast(self.lanes, "float", scalar)
            carried = loop.carried[row * len(panel) : (row + 1) * len(panel)]
            sums += [
                self.dot.accumulate(b, s, (left,), (r,))
                for s, r in zip(carried, right, strict=True)
            ]
        sums = b.end_loop(loop, sums)
        for index, value in enumerate(sums):
            row, position = divmod(index, len(panel))
            self.store(out, row, panel[position], value)

    def right(self, y: Value, row: Value, panel: Sequence[Columns]) -> list[Value]:
        """A row of the panel of y."""
        at = self.b.at(y, self.b.mul(row, self.strides(self.y)[1]))
        return [self.load("float", c, self.columns_at(at, c, self.y)) for c in panel]
