"""Products of activations: panels of columns of y, tiles of rows of x; in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.vector.partial import load_partial, store_partial
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.instr.program import View
from quantglow.lazy import cached_property
from quantglow.ops import MatMul
from quantglow.types import DType


@dataclass
class Product:
    """Base of all products: panels of columns, tiles of rows."""

    b: Builder
    target: Target
    op: MatMul
    x: View
    y: View
    out: View

    def __post_init__(self) -> None:
        self.batch, self.rows, self.columns = self.op.type.shape
        self.depth = self.op.x.type.shape[2]

    @property
    def applies(self) -> bool:
        """Whether the form exists for these types on this target."""
        raise NotImplementedError

    def call(self) -> KernelCall:
        work = float(self.batch * self.rows * self.columns * self.depth) / 8
        return KernelCall(self.text, (self.out, self.x, self.y), self.items, work, "matmul")

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @cached_property
    def tile_rows(self) -> int:
        return min(self.rows, 8 if self.target.registers >= 32 else 4)

    @cached_property
    def panel(self) -> int:
        """Vectors of columns of a panel."""
        return min(3 if self.target.registers >= 32 else 2, -(-self.columns // self.lanes))

    @cached_property
    def panels(self) -> int:
        return -(-self.columns // (self.panel * self.lanes))

    @property
    def items(self) -> int:
        return self.batch * self.panels

    def valid(self, last: bool) -> list[int]:
        """Columns of each vector in a panel."""
        width = self.panel * self.lanes
        if last and self.columns % width:
            width = self.columns % width
        starts = range(0, width, self.lanes)
        return [min(self.lanes, width - start) for start in starts]

    def strides(self, view: View) -> list[int]:
        return [s * view.type.dtype.nbytes for s in view.strides]

    def prepare(self) -> None:
        """Set aside memory, at the entry."""

    def pack(self, y: Value, valid: Sequence[int]) -> None:
        """Prepare a panel of y."""

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        raise NotImplementedError

    def text(self) -> str:
        b = self.b
        out, x, y = b.kernel(3)
        self.prepare()
        width = self.panel * self.lanes
        with b.loop("%begin", "%end") as item:
            batch, panel = b.divide(item, self.panels)
            at = [
                b.at(pointer, b.mul(batch, self.strides(view)[0]))
                for pointer, view in ((out, self.out), (x, self.x), (y, self.y))
            ]
            at[0] = b.at(at[0], b.mul(panel, width * self.out.type.dtype.nbytes))
            at[2] = b.at(at[2], b.mul(panel, width * self.y.type.dtype.nbytes))
            self.panel_cases(panel, at)
        return b.finish()

    def panel_cases(self, panel: Value, at: Sequence[Value]) -> None:
        """Full panels and the last one, which may be narrower."""
        b = self.b
        if self.panels == 1 or not self.columns % (self.panel * self.lanes):
            self.all_rows(at, self.valid(last=True))
            return
        last = b.compare("eq", "i64", panel, str(self.panels - 1))
        with b.when(b.op("xor", "i1", last, "true")):
            self.all_rows(at, self.valid(last=False))
        with b.when(last):
            self.all_rows(at, self.valid(last=True))

    def all_rows(self, at: Sequence[Value], valid: Sequence[int]) -> None:
        b = self.b
        out, x, y = at
        self.pack(y, valid)
        whole = self.rows // self.tile_rows
        x_step, out_step = self.strides(self.x)[1], self.strides(self.out)[1]
        with b.loop(0, whole) as index:
            at_x = b.at(x, b.mul(index, self.tile_rows * x_step))
            at_out = b.at(out, b.mul(index, self.tile_rows * out_step))
            self.tile(self.tile_rows, at_out, at_x, y, valid)
        done = whole * self.tile_rows
        if done < self.rows:
            at_x, at_out = b.at(x, done * x_step), b.at(out, done * out_step)
            self.tile(self.rows - done, at_out, at_x, y, valid)

    def store(self, out: Value, row: int, position: int, valid: int, value: Value) -> None:
        element = ELEMENTS[self.out.type.dtype]
        nbytes = self.out.type.dtype.nbytes
        offset = row * self.strides(self.out)[1] + position * self.lanes * nbytes
        at = self.b.at(out, offset)
        store_partial(self.b, self.target, element, self.lanes, valid, value, at)


class FloatProduct(Product):
    """Sums in float32, fused where the target can."""

    @property
    def applies(self) -> bool:
        return self.op.x.type.dtype.is_float

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(DType.F32)

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        b, kind = self.b, vector(self.lanes, "float")
        zeros = [(kind, splat(kind, f32(0.0)))] * (rows * len(valid))
        loop = b.begin_loop(self.depth, zeros)
        at_x = b.at(x, b.mul(loop.index, self.strides(self.x)[2]))
        at_y = b.at(y, b.mul(loop.index, self.strides(self.y)[1]))
        right = [
            load_partial(b, self.target, "float", self.lanes, n, b.at(at_y, i * self.lanes * 4))
            for i, n in enumerate(valid)
        ]
        sums: list[Value] = []
        for row in range(rows):
            scalar = b.load("float", b.at(at_x, row * self.strides(self.x)[1]))
            left = b.broadcast(self.lanes, "float", scalar)
            carried = loop.carried[row * len(valid) : (row + 1) * len(valid)]
            sums += [
                self.dot.accumulate(b, s, (left,), (r,))
                for s, r in zip(carried, right, strict=True)
            ]
        sums = b.end_loop(loop, sums)
        for index, value in enumerate(sums):
            row, position = divmod(index, len(valid))
            self.store(out, row, position, valid[position], value)
