"""Integer products of activations in 16 bits.

For int16, and for targets without a dot product of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.kernels.contraction.tiling import Tile
from quantglow.codegen.llvm.kernels.matmul.product import PANEL_NBYTES, MatrixProduct, PanelColumns
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, Operand, Value, f32, splat, vector
from quantglow.ir.program.program import View
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, likely, surely_divides
from quantglow.ir.types import DType

MOST_ROWS, CENTERED_NBYTES = 8, 64 * 1024
"""Centered rows lie on the stack, too: a tile has more than these only if they have few bytes."""


class IntegerProduct(MatrixProduct):
    """Base of integer products: exact int32 sums, scaled and rounded once."""

    def memory(self, nbytes: Dim) -> Value:
        """Memory on the stack; its size is a bound, and that a guard, where it is free."""
        if isinstance(nbytes, Size):
            bound = max(PANEL_NBYTES, 1 << likely(nbytes).bit_length())
            if decide(nbytes > bound):
                raise AssertionError("the hint is within the bound")
            nbytes = bound
        return self.b.allocate(nbytes, 64)

    def scaled(self, total: Value) -> Value:
        """The sum in reals, or rounded to the result's integers in its element type."""
        b, op = self.b, self.op
        kind = vector(self.lanes, FLOAT)
        real = vectors.int_to_float(b, self.lanes, total)
        steps = b.op("fmul", kind, real, splat(kind, f32(float(op.accumulator_scale()))))
        if op.out is None:
            return steps
        limits, zero_point = op.out.dtype.limits, op.type.params.zero_point
        rounded = vectors.quantize_steps(b, self.target, self.lanes, steps, *limits, zero_point)
        return vectors.narrow(b, self.lanes, rounded, ELEMENTS[op.out.dtype])


class WordProduct(IntegerProduct):
    """``(x - zero point) @ (y - zero point)``, exact in int32."""

    @property
    def applies(self) -> bool:
        return not self.op.x.type.dtype.is_float

    @property
    def pairs(self) -> Dim:
        """Pairs of rows of y; a last odd row is paired with zeros."""
        return -(-self.depth // 2)

    @property
    def steps(self) -> Dim:
        return self.pairs

    @property
    def fitting(self) -> int:
        """Vectors of columns of which a panel has not too many bytes."""
        return max(1, PANEL_NBYTES // (likely(self.pairs) * self.target.vector_nbytes))

    @property
    def most_vectors(self) -> int:
        return min(super().most_vectors, self.fitting)

    @property
    def possible_tiles(self) -> list[Tile]:
        most_rows = max(MOST_ROWS, CENTERED_NBYTES // likely(self.row_nbytes))
        tiles = super().possible_tiles
        return [t for t in tiles if t.vectors <= self.fitting and t.rows <= most_rows]

    @property
    def row_nbytes(self) -> Dim:
        """Bytes of a centered row: rows are centered whole vectors at a time."""
        return (self.depth + 4 * self.lanes) * 2 // 4 * 4

    def prepare(self) -> None:
        self.packed = self.memory(self.pairs * self.panel * self.target.vector_nbytes)
        self.centered = self.memory(self.tile_rows * self.row_nbytes)

    # -- packing

    def pack(self, y: Value, panel: Sequence[PanelColumns]) -> None:
        """Pairs of rows, centered, interleaved by columns."""
        b = self.b
        step = self.strides(self.y)[1]
        with b.loop(0, self.depth // 2) as pair:
            upper = b.at(y, b.mul(pair, 2 * step))
            self.pack_pair(pair, upper, b.at(upper, step), panel)
        last, odd = self.depth // 2, self.depth % 2
        if isinstance(odd, Size) or odd:
            with b.when(b.compare("ne", b.index, str(odd), "0") if is_free(odd) else "true"):
                self.pack_pair(str(last), b.at(y, 2 * last * step), None, panel)

    def pack_pair(
        self, pair: Operand, upper: Value, lower: Value | None, panel: Sequence[PanelColumns]
    ) -> None:
        b, lanes = self.b, self.lanes
        halves, whole = vector(lanes, I16), vector(2 * lanes, I16)
        order = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
        row = b.at(self.packed, b.mul(pair, len(panel) * self.target.vector_nbytes))
        for position, columns in enumerate(panel):
            first = self.words(self.columns_at(upper, columns, self.y), columns.count, self.y)
            second = splat(halves, "0")
            if lower is not None:
                at = self.columns_at(lower, columns, self.y)
                second = self.words(at, columns.count, self.y)
            mixed = b.shuffle(halves, first, second, order)
            b.store(whole, mixed, b.at(row, position * self.target.vector_nbytes), align=16)

    def words(self, pointer: Value, count: int | Value, view: View) -> Value:
        """A vector of integers, centered, in 16 bits."""
        b, dtype = self.b, view.type.dtype
        wide = load_partial(b, self.target, ELEMENTS[dtype], self.lanes, count, pointer)
        kind = vector(self.lanes, I16)
        if dtype is not DType.I16:
            extend = "sext" if dtype is DType.I8 else "zext"
            wide = b.cast(extend, vector(self.lanes, I8), wide, kind)
        zero_point = view.type.params.zero_point
        return b.op("sub", kind, wide, splat(kind, str(zero_point))) if zero_point else wide

    def center_rows(self, rows: int, x: Value) -> None:
        """Rows of x in 16 bits; an odd last element is paired with zero."""
        b, lanes, itemsize = self.b, self.lanes, self.x.type.dtype.nbytes
        for row in range(rows):
            source = self.row_at(x, row, self.strides(self.x)[1])
            target = self.row_at(self.centered, row, self.row_nbytes)
            remainder = self.depth % lanes
            whole = self.depth - remainder
            with b.loop(0, whole, lanes) as index:
                words = self.words(b.at(source, b.mul(index, itemsize)), lanes, self.x)
                b.store(vector(lanes, I16), words, b.at(target, b.mul(index, 2)))
            valid: int | Value
            if isinstance(remainder, Size):
                whole, valid = self.free_remainder(remainder)
            else:
                valid = remainder
            if decide(whole != self.depth):
                words = self.words(b.at(source, whole * itemsize), valid, self.x)
                b.store(vector(lanes, I16), words, b.at(target, 2 * whole))
            if not surely_divides(2, self.depth):
                b.store(I16, "0", b.at(target, 2 * self.depth))

    def free_remainder(self, remainder: Size) -> tuple[Dim, int | Value]:
        """The beginning of a row's last vector, and its elements: as many as a vector has, or the
        mask of all of a shorter row."""
        if decide(self.depth >= self.lanes):
            return self.depth - self.lanes, self.lanes
        return 0, vectors.first_lanes(self.b, self.lanes, str(remainder))

    # -- products

    def tile(
        self, rows: int, out: Value, x: Value, y: Value, panel: Sequence[PanelColumns]
    ) -> None:
        b, lanes = self.b, self.lanes
        self.center_rows(rows, x)
        kind, words = vector(lanes, I32), vector(2 * lanes, I16)
        loop = b.begin_loop(self.pairs, [(kind, splat(kind, "0"))] * (rows * len(panel)))
        nbytes = self.target.vector_nbytes
        at_y = b.at(self.packed, b.mul(loop.index, len(panel) * nbytes))
        right = [b.load(words, b.at(at_y, i * nbytes), align=16) for i in range(len(panel))]
        at_x = b.at(self.centered, b.mul(loop.index, 4))
        sums: list[Value] = []
        for row in range(rows):
            pair = b.load(I32, self.row_at(at_x, row, self.row_nbytes), align=2)
            left = b.cast("bitcast", kind, b.broadcast(lanes, I32, pair), words)
            for pairs in right:
                products = self.target.isa.word_products(b, left, pairs)
                sums.append(b.op("add", kind, loop.carried[len(sums)], products))
        sums = b.end_loop(loop, sums)
        for index, total in enumerate(sums):
            row, position = divmod(index, len(panel))
            self.store(out, row, panel[position], self.scaled(total))
