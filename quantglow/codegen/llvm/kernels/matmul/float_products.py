"""Products of float32 activations, also with a matrix whose columns lie as rows.

Such a matrix holds the keys of attention, for example.  A panel of its columns is transposed in
registers and kept on the stack, from where the tiles of all rows read it: the sums are those of
``FloatProduct``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.isa.costs import StepCost
from quantglow.codegen.llvm.isa.dot import DotProduct
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile
from quantglow.codegen.llvm.kernels.matmul.product import PANEL_NBYTES, MatrixProduct, PanelColumns
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.values import FLOAT, Value, f32, splat, vector
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property


class FloatProduct(MatrixProduct):
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

    def tile(
        self, rows: int, out: Value, x: Value, y: Value, panel: Sequence[PanelColumns]
    ) -> None:
        b, kind = self.b, vector(self.lanes, FLOAT)
        zeros = [(kind, splat(kind, f32(0.0)))] * (rows * len(panel))
        loop = b.begin_loop(self.depth, zeros)
        at_x = b.at(x, b.mul(loop.index, self.strides(self.x)[2]))
        right = self.right(y, loop.index, panel)
        sums: list[Value] = []
        for row in range(rows):
            scalar = b.load(FLOAT, self.row_at(at_x, row, self.strides(self.x)[1]))
            left = b.broadcast(self.lanes, FLOAT, scalar)
            carried = loop.carried[row * len(panel) : (row + 1) * len(panel)]
            sums += [
                self.dot.accumulate(b, s, (left,), (r,))
                for s, r in zip(carried, right, strict=True)
            ]
        sums = b.end_loop(loop, sums)
        for index, value in enumerate(sums):
            row, position = divmod(index, len(panel))
            self.store(out, row, panel[position], value)

    def right(self, y: Value, row: Value, panel: Sequence[PanelColumns]) -> list[Value]:
        """A row of the panel of y."""
        at = self.b.at(y, self.b.mul(row, self.strides(self.y)[1]))
        return [self.load(FLOAT, c, self.columns_at(at, c, self.y)) for c in panel]


class TransposedProduct(FloatProduct):
    """Blocks of as many columns and rows of y as a vector has lanes are transposed at once."""

    @property
    def applies(self) -> bool:
        """Whether the columns of y lie densely; a program has such operands of known depth only."""
        return super().applies and not self.y.dense_rows

    @property
    def known_depth(self) -> int:
        """The rows of y, which are known; the columns of x may be a size that is equal to it."""
        return int(self.y.shape[-2])

    @property
    def possible_tiles(self) -> list[Tile]:
        fitting = PANEL_NBYTES // (self.known_depth * self.target.vector_nbytes)
        most = max(self.usual_panel, fitting)
        return [tile for tile in super().possible_tiles if tile.vectors <= most]

    @property
    def column_nbytes(self) -> Dim:
        return self.strides(self.y)[2]

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of the transposed panel."""
        return self.panel * self.target.vector_nbytes

    def prepare(self) -> None:
        """Memory for a transposed panel."""
        self.transposed = self.b.allocate(self.known_depth * self.row_nbytes, 64)

    def pack(self, y: Value, panel: Sequence[PanelColumns]) -> None:
        """Transpose a panel."""
        b, lanes = self.b, self.lanes
        whole, remainder = divmod(self.known_depth, lanes)
        with b.loop(0, whole) as block:
            at_y, to = b.at(y, b.mul(block, 4 * lanes)), b.mul(block, lanes * self.row_nbytes)
            self.transpose(panel, at_y, b.at(self.transposed, to), lanes)
        if remainder:
            to = b.at(self.transposed, whole * lanes * self.row_nbytes)
            self.transpose(panel, b.at(y, 4 * whole * lanes), to, remainder)

    def transpose(self, panel: Sequence[PanelColumns], y: Value, to: Value, rows: int) -> None:
        """The first rows of y below an address, by columns of the panel."""
        b, kind = self.b, vector(self.lanes, FLOAT)
        for position, columns in enumerate(panel):
            lines = [
                load_partial(b, self.target, FLOAT, self.lanes, rows, self.column(y, columns, i))
                for i in range(self.lanes)
            ]
            for row, value in enumerate(self.exchanged(lines)[:rows]):
                at = b.at(to, row * self.row_nbytes + position * self.target.vector_nbytes)
                b.store(kind, value, at, align=16)

    def column(self, y: Value, columns: PanelColumns, lane: int) -> Value:
        """The address of a column; the last one stands for those that are missing."""
        b = self.b
        if isinstance(columns.count, int):
            index: Value | int = min(lane, columns.count - 1)
        else:  # fewer columns than lanes, from the first on
            last = str(self.columns - 1)
            inside = b.compare("slt", b.index, str(lane), last)
            index = b.select(b.index, inside, str(lane), last) if lane else 0
        if isinstance(index, int) and isinstance(columns.start, int):
            return b.at(y, b.mul(str(columns.start + index), self.column_nbytes))
        place = b.op("add", b.index, str(columns.start), str(index))
        return b.at(y, b.mul(place, self.column_nbytes))

    def exchanged(self, lines: Sequence[Value]) -> list[Value]:
        """The columns of a square of vectors as vectors: halves, then quarters, and so on are
        exchanged."""
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, FLOAT)
        exchanged, half = list(lines), lanes // 2
        while half:
            upper = [i + lanes - half if i & half else i for i in range(lanes)]
            lower = [lanes + i if i & half else i + half for i in range(lanes)]
            for first in (i for i in range(lanes) if not i & half):
                pair = exchanged[first], exchanged[first + half]
                exchanged[first] = b.shuffle(kind, *pair, upper)
                exchanged[first + half] = b.shuffle(kind, *pair, lower)
            half //= 2
        return exchanged

    def right(self, y: Value, row: Value, panel: Sequence[PanelColumns]) -> list[Value]:
        b, kind = self.b, vector(self.lanes, FLOAT)
        at = b.at(self.transposed, b.mul(row, self.row_nbytes))
        places = (b.at(at, i * self.target.vector_nbytes) for i in range(len(panel)))
        return [b.load(kind, place, align=16) for place in places]
