"""Base of all products of activations: panels of columns of y, tiles of rows of x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import KernelChoice, StepCost
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile, candidates
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_partial, store_partial
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import I1, TRUE, Type, Value
from quantglow.ir.ops import MatMul
from quantglow.ir.program.program import View
from quantglow.ir.symbolic.size import Dim, Size, careful, decide, is_free, likely
from quantglow.support.classes import cached_property

PANEL_NBYTES = 256 * 1024
"""A packed panel lies on the stack: not more than this."""


@dataclass(frozen=True)
class PanelColumns:
    """Neighboring columns of a panel in one vector, from ``start`` on.  ``count``: how many, or
    their mask."""

    start: int | Value
    count: int | Value


@dataclass
class MatrixProduct:
    """Panels of columns, tiles of rows.

    Where the number of columns (rows) is free, the last vector (tile) is moved back so that it ends
    with the last column (row): what it shares with its neighbor is computed twice.
    """

    b: Builder
    target: Target
    op: MatMul
    x: View
    y: View
    out: View
    chosen: KernelChoice | None = None

    def __post_init__(self) -> None:
        self.batch, self.rows, self.columns = self.op.type.shape
        self.depth = self.op.x.type.shape[2]

    @property
    def applies(self) -> bool:
        """Whether the form exists for these types on this target."""
        raise NotImplementedError

    def call(self) -> KernelCall:
        products = float(likely(self.batch * self.rows * self.columns * self.depth))
        read_nbytes = products / likely(self.rows) * self.y.type.dtype.nbytes
        work = max(products / 8, read_nbytes / 4)  # few rows wait for y
        return KernelCall(self.text, (self.out, self.x, self.y), self.items, work, "matmul")

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    # -- tiles

    @property
    def most_rows(self) -> int:
        """Rows of a tile, unless there are fewer."""
        # Eight rows by three vectors (``most_vectors``) are 24 sums of 32 registers, four by two
        # are 8 of 16: the others hold the vectors of y of a step, the operand of a row, and what
        # products need.
        return 8 if self.target.registers >= 32 else 4

    @cached_property
    def tile_rows(self) -> int:
        """Rows of a tile.  Programs serve no fewer, so those of a free number of rows are at most
        the largest power of two within the hint."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.chosen.tile[0]
        if not isinstance(self.rows, Size):
            return min(self.rows, self.most_rows)
        fewer = 1 << (careful(self.rows).bit_length() - 1)
        tile = min(self.most_rows, fewer)
        return tile if decide(self.rows >= tile) else 1

    @property
    def most_vectors(self) -> int:
        """Vectors of columns of a panel, unless there are fewer."""
        return 3 if self.target.registers >= 32 else 2

    @cached_property
    def panel(self) -> int:
        """Vectors of columns of a panel."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.chosen.tile[2]
        return self.usual_panel

    @property
    def usual_panel(self) -> int:
        """``panel``, where nothing was chosen."""
        if is_free(self.columns):
            return self.free_panel
        return min(self.most_vectors, self.vectors)

    @property
    def vectors(self) -> int:
        """Vectors of columns of a matrix, whose number is known."""
        return -(-int(self.columns) // self.lanes)

    @property
    def cost(self) -> StepCost:
        """Cost of a step of the inner loop."""
        return StepCost(self.target.registers, core=self.target.core)

    @property
    def steps(self) -> Dim:
        """Steps of the inner loop."""
        return self.depth

    @property
    def possible_tiles(self) -> list[Tile]:
        """The tiles that can be chosen: rows, one column, vectors of a panel."""
        tiles = candidates(1, likely(self.rows), self.vectors, self.cost)
        return [Tile(tile.columns, 1, tile.vectors) for tile in tiles]

    @cached_property
    def free_panel(self) -> int:
        """The same where the number of columns is free."""
        return self.most_vectors if decide(self.columns >= self.lanes) else 1

    @cached_property
    def panels(self) -> Dim:
        return -(-self.columns // (self.panel * self.lanes))

    @property
    def items(self) -> Dim:
        return self.batch * self.panels

    def panel_columns(self, width: int) -> list[PanelColumns]:
        """The vectors of a panel of ``width`` columns."""
        starts = range(0, width, self.lanes)
        return [PanelColumns(start, min(self.lanes, width - start)) for start in starts]

    # -- addresses

    def strides(self, view: View) -> list[Dim]:
        return [s * view.type.dtype.nbytes for s in view.strides]

    @property
    def column_nbytes(self) -> Dim:
        """Bytes from one column of y to the next."""
        return self.y.type.dtype.nbytes

    def row_at(self, pointer: Value, row: int, stride: Dim) -> Value:
        """A row after that of a pointer."""
        if is_free(stride) and row:
            return self.b.at(pointer, self.b.mul(str(stride), row))
        return self.b.at(pointer, row * stride)

    def columns_at(self, pointer: Value, columns: PanelColumns, view: View) -> Value:
        """The first of some columns."""
        nbytes = view.type.dtype.nbytes
        if isinstance(columns.start, int):
            return self.b.at(pointer, columns.start * nbytes)
        return self.b.at(pointer, self.b.mul(columns.start, nbytes))

    def load(self, element: Type, columns: PanelColumns, pointer: Value) -> Value:
        """A vector of columns; ``pointer`` is that of the first."""
        return load_partial(self.b, self.target, element, self.lanes, columns.count, pointer)

    def store(self, out: Value, row: int, columns: PanelColumns, value: Value) -> None:
        stride, start = self.strides(self.out)[1], columns.start
        element, nbytes = ELEMENTS[self.out.type.dtype], self.out.type.dtype.nbytes
        if is_free(stride) or not isinstance(start, int):
            at = self.columns_at(self.row_at(out, row, stride), columns, self.out)
        else:
            at = self.b.at(out, row * stride + start * nbytes)
        store_partial(self.b, self.target, element, self.lanes, columns.count, value, at)

    # -- the kernel

    def prepare(self) -> None:
        """Set aside memory, at the entry."""

    def pack(self, y: Value, panel: Sequence[PanelColumns]) -> None:
        """Prepare a panel of y."""

    def tile(
        self, rows: int, out: Value, x: Value, y: Value, panel: Sequence[PanelColumns]
    ) -> None:
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
            at[2] = b.at(at[2], b.mul(panel, width * self.column_nbytes))
            self.panel_cases(panel, at)
        return b.finish()

    def panel_cases(self, panel: Value, at: Sequence[Value]) -> None:
        """Full panels and the last one, which may be narrower."""
        b, width = self.b, self.panel * self.lanes
        if isinstance(self.columns, Size):
            self.free_panel_cases(panel, at)
            return
        panels = -(-self.columns // width)
        last_width = self.columns - (panels - 1) * width
        if panels == 1 or last_width == width:
            self.all_rows(at, self.panel_columns(last_width))
            return
        last = b.compare("eq", b.index, panel, str(panels - 1))
        with b.when(b.op("xor", I1, last, "true")):
            self.all_rows(at, self.panel_columns(width))
        with b.when(last):
            self.all_rows(at, self.panel_columns(last_width))

    def free_panel_cases(self, panel: Value, at: Sequence[Value]) -> None:
        """Panels of any number of vectors, the last of which ends with the last column."""
        b, lanes, width = self.b, self.lanes, self.panel * self.lanes
        if decide(self.columns < lanes):
            mask = vectors.first_lanes(b, lanes, str(self.columns))
            self.all_rows(at, [PanelColumns(0, mask)])
            return
        columns_left = b.op("sub", b.index, str(self.columns), b.mul(panel, width))
        before_last = b.op("sub", b.index, columns_left, str(lanes))
        beyond = [
            b.compare("sgt", b.index, before_last, str(i * lanes)) for i in range(self.panel - 1)
        ]
        for whole in range(self.panel):
            begin = before_last
            if whole < len(beyond):
                is_case = b.op("xor", I1, beyond[whole], "true")
            else:
                is_case, most = TRUE, str(whole * lanes)
                begin = b.select(b.index, b.compare("slt", b.index, begin, most), begin, most)
            if whole:
                is_case = b.op("and", I1, is_case, beyond[whole - 1])
            with b.when(is_case):
                self.all_rows(at, [*self.panel_columns(whole * lanes), PanelColumns(begin, lanes)])

    def all_rows(self, at: Sequence[Value], panel: Sequence[PanelColumns]) -> None:
        b = self.b
        out, x, y = at
        self.pack(y, panel)
        if isinstance(self.rows, Size):
            self.free_rows(at, panel)
            return
        whole = self.rows // self.tile_rows
        x_step, out_step = self.strides(self.x)[1], self.strides(self.out)[1]
        with b.loop(0, whole) as index:
            at_x = b.at(x, b.mul(index, self.tile_rows * x_step))
            at_out = b.at(out, b.mul(index, self.tile_rows * out_step))
            self.tile(self.tile_rows, at_out, at_x, y, panel)
        done = whole * self.tile_rows
        if done < self.rows:
            at_x, at_out = b.at(x, done * x_step), b.at(out, done * out_step)
            self.tile(self.rows - done, at_out, at_x, y, panel)

    def free_rows(self, at: Sequence[Value], panel: Sequence[PanelColumns]) -> None:
        """Tiles of a free number of rows; the last one ends with the last row."""
        b, (out, x, y) = self.b, at
        last = str(self.rows - self.tile_rows)
        with b.loop(0, str(self.rows), self.tile_rows) as index:
            first = b.select(b.index, b.compare("slt", b.index, index, last), index, last)
            at_x = b.at(x, b.mul(first, self.strides(self.x)[1]))
            at_out = b.at(out, b.mul(first, self.strides(self.out)[1]))
            self.tile(self.tile_rows, at_out, at_x, y, panel)
