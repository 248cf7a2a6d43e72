"""Products of float32 with a matrix whose columns lie as rows, such as the keys of attention.

A panel of columns is turned in registers and kept on the stack, from where the tiles of all rows
read it: the sums are those of ``float_products``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.matmul.float_products import FloatProduct
from quantglow.backends.llvm.kernels.matmul.product import PANEL_NBYTES, Columns
from quantglow.backends.llvm.kernels.vector.partial import load_partial


class TurnedProduct(FloatProduct):
    """Blocks of as many columns and rows of y as a vector has lanes are turned at once."""

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
    def column_nbytes(self) -> int:
        return self.strides(self.y)[2]

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of the turned panel."""
        return self.panel * self.target.vector_nbytes

    def prepare(self) -> None:
        """Memory for a turned panel."""
        self.turned = self.b.emit(f"alloca [{self.known_depth * self.row_nbytes} x i8], align 64")

    def pack(self, y: Value, panel: Sequence[Columns]) -> None:
        """Turn a panel."""
        b, lanes = self.b, self.lanes
        whole, rest = divmod(self.known_depth, lanes)
        with b.loop(0, whole) as block:
            at_y, to = b.at(y, b.mul(block, 4 * lanes)), b.mul(block, lanes * self.row_nbytes)
            self.turn(panel, at_y, b.at(self.turned, to), lanes)
        if rest:
            to = b.at(self.turned, whole * lanes * self.row_nbytes)
            self.turn(panel, b.at(y, 4 * whole * lanes), to, rest)

    def turn(self, panel: Sequence[Columns], y: Value, to: Value, rows: int) -> None:
        """The first rows of y below an address, by columns of the panel."""
        b, kind = self.b, vector(self.lanes, "float")
        for position, columns in enumerate(panel):
            lines = [
                load_partial(b, self.target, "float", self.lanes, rows, self.column(y, columns, i))
                for i in range(self.lanes)
            ]
            for row, value in enumerate(self.exchanged(lines)[:rows]):
                at = b.at(to, row * self.row_nbytes + position * self.target.vector_nbytes)
                b.store(kind, value, at, align=16)

    def column(self, y: Value, columns: Columns, lane: int) -> Value:
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
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, "float")
        found, half = list(lines), lanes // 2
        while half:
            upper = [i + lanes - half if i & half else i for i in range(lanes)]
            lower = [lanes + i if i & half else i + half for i in range(lanes)]
            for first in (i for i in range(lanes) if not i & half):
                pair = found[first], found[first + half]
                found[first] = b.shuffle(kind, *pair, upper)
                found[first + half] = b.shuffle(kind, *pair, lower)
            half //= 2
        return found

    def right(self, y: Value, row: Value, panel: Sequence[Columns]) -> list[Value]:
        b, kind = self.b, vector(self.lanes, "float")
        at = b.at(self.turned, b.mul(row, self.row_nbytes))
        places = (b.at(at, i * self.target.vector_nbytes) for i in range(len(panel)))
        return [b.load(kind, place, align=16) for place in places]
