"""Convolution as loops over tiles of output pixels and panels of output channels.

All forms share these loops, which find a tile's place in the order of ``ConvPlan``; ``body``
computes one tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantglow.codegen.llvm.builder import Builder, Index
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.conv.plan import ConvPlan
from quantglow.codegen.llvm.values import ABSENT, I1, TRUE, Operand, Value
from quantglow.ir.symbolic.size import Dim, Size, decide, likely


@dataclass
class ConvLoops(ConvPlan):
    """Generator of the loops of one convolution kernel."""

    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.b = Builder(index=self.target.isa.index)

    def call(self) -> KernelCall:
        y = self.geometry.y
        pixels = y.count * y.height * y.width
        steps = self.geometry.runs.total_steps * self.channels * self.conv.group
        views = (self.step.inputs[0], self.step.output)
        residual = self.epilogue.residual.operands(self.step)
        return KernelCall(
            code=self.text,
            pointers=(*views, *self.constants(), *self.counts(), *residual),
            items=self.items,
            work=float(likely(pixels) * steps * STEP_NBYTES),
            label=f"conv {self.tile.rows}x{self.tile.columns}x{self.tile.vectors}",
            facts=f"{type(self).__name__} {type(self.dot).__name__} {self.epilogue.facts}",
        )

    @property
    def items(self) -> Dim:
        """Work items."""
        return self.rounds[0] * self.parts

    def text(self) -> str:
        b = self.b
        added = self.epilogue.residual
        pointers = b.kernel(4 + self.epilogue.scaled + self.is_counted + added.count)
        self.x, self.y, self.w, self.bias = pointers[:4]
        self.scale = pointers[4] if self.epilogue.scaled else ABSENT
        self.residual_params, self.residual = added.pointers(pointers)
        self.tiles: Index = self.pixel_tiles
        if self.is_counted:
            self.tiles = b.load_index(pointers[-1 - added.count])
        self.enter()
        with b.loop("%begin", "%end") as item:
            outer, part = b.divide(item, self.parts)
            # The operand of the outer loop is read once, that of the inner one once for each of its
            # rounds: the larger of weights and image should be outside (``ConvPlan.panels_outer``).
            if self.panels_outer:
                channels = self.locate_channels(outer)
                with b.loop(*self._inner(part)) as tile:
                    self.turn = tile
                    self.dispatch(self.locate_pixels(tile), channels)
            else:
                pixels = self.locate_pixels(outer)
                with b.loop(*self._inner(part)) as panel:
                    self.dispatch(pixels, self.locate_channels(panel))
        self.leave()
        return b.finish()

    def _inner(self, part: Value) -> tuple[Index, Index]:
        """The rounds of the inner loop that belong to an item."""
        b, inner = self.b, self.tiles if self.panels_outer else self.all_panels
        if self.parts == 1:
            return 0, inner
        first, last = b.mul(part, inner), b.mul(b.add(part, 1), inner)
        return b.divide(first, self.parts)[0], b.divide(last, self.parts)[0]

    def enter(self) -> None:
        """Code before the loops."""

    def leave(self) -> None:
        """Code after the loops."""

    def locate_pixels(self, tile: Value) -> _Pixels:
        """Pointers to the first pixel of a tile."""
        b, g = self.b, self.geometry
        if self.is_row:
            image, row, column = b.constant(0), b.constant(0), tile
        else:
            row_tile, column = b.divide(tile, self.column_tiles)
            image, row = self._divided(row_tile, self.row_tiles, self.geometry.y.count)
        columns = self.tiles if self.is_row else self.column_tiles
        index = (image, b.mul(row, self.tile.rows), self._first_column(column))
        residual: Value = ABSENT
        if g.residual is not None:
            residual = b.at(self.residual, self._dot3(index, g.residual.pitches))
        return _Pixels(
            b.at(self.x, self._dot3(index, (g.x.batch_pitch, *self._strided()))),
            b.at(self.y, self._dot3(index, g.y.pitches)),
            residual,
            self._sizes(g.y.height, self.tile.rows, row, self.row_tiles),
            self._sizes(g.y.width, self.tile.columns, column, columns),
        )

    def _divided(self, index: Value, by: Dim, quotients: Dim) -> tuple[Value, Value]:
        """Quotient, one of so many, and remainder: LLVM does not know that there is but one, and
        small processors divide in each turn of a loop."""
        single = not isinstance(quotients, Size) and quotients == 1
        if self.target.saves_code and single:
            return self.b.constant(0), index
        return self.b.divide(index, by)

    def _first_column(self, tile: Value) -> Value:
        """The first column of a tile."""
        b, size = self.b, self.tile.columns
        first = b.mul(tile, size)
        if not self.moves_back:
            return first
        assert decide(self.geometry.y.width >= size)
        last = (first, str(self.geometry.y.width - size))
        return b.call(f"llvm.smin.{b.index}", b.index, *((b.index, value) for value in last))

    def locate_channels(self, panel: Value) -> Channels:
        """Offsets of the first channel of a panel."""
        b, panels = self.b, self.panels
        group, local = self._divided(panel, panels.count, self.conv.group)
        width = panels.vectors * panels.lanes
        group_nbytes = sum(panels.widths()) * self.vector_steps_nbytes
        panel_nbytes = panels.vectors * self.vector_steps_nbytes
        return Channels(
            b.mul(group, self.conv.w.type.fixed_shape[2] * self.geometry.x.itemsize),
            b.add(b.mul(group, panels.channels), b.mul(local, width)),
            b.add(b.mul(group, group_nbytes), b.mul(local, panel_nbytes)),
            b.add(b.mul(group, panels.padded_channels), b.mul(local, width)),
            self._panel_kinds(local),
        )

    def dispatch(self, pixels: _Pixels, channels: Channels) -> None:
        """Run the body made for the sizes of a tile and a panel."""
        b, g = self.b, self.geometry
        residual = pixels.residual
        if g.residual is not None:
            residual = b.at(residual, b.mul(channels.first, g.residual.itemsize))
        place = TilePointers(
            b.at(pixels.x, channels.x_offset),
            b.at(pixels.y, b.mul(channels.first, g.y.itemsize)),
            b.at(self.w, channels.weights),
            channels.packed_first,
            residual,
        )
        for rows, row_test in pixels.rows:
            with b.when(row_test):
                for columns, column_test in pixels.columns:
                    with b.when(column_test):
                        for vectors, valid, test in channels.kinds:
                            with b.when(test):
                                self.body(rows, columns, vectors, valid, place)

    def _strided(self) -> tuple[Dim, Dim]:
        g = self.geometry
        return g.strides[0] * g.x.row_pitch, g.strides[1] * g.x.column_pitch

    def _dot3(self, index: tuple[Value, Value, Value], pitches: tuple[Dim, Dim, Dim]) -> Value:
        b, total = self.b, self.b.constant(0)
        for i, pitch in zip(index, pitches, strict=True):
            if i != "0" and decide(pitch != 0):
                term = b.mul(i, pitch)
                total = term if total == "0" else b.add(total, term)
        return total

    def _sizes(
        self, total: Dim, size: int, index: Operand, count: Index
    ) -> list[tuple[int, Value]]:
        """Tile lengths that occur along one axis, each with the test that it is the turn."""
        tail = total % size
        if isinstance(tail, Size) or not tail:
            return [(size, TRUE)]
        if decide(total < size):
            return [(tail, TRUE)]
        last = self.b.compare("eq", self.b.index, self.b.add(index, 1), str(count))
        full = self.b.op("xor", I1, last, "true")
        return [(size, full), (tail, last)]

    def _panel_kinds(self, local: Value) -> list[tuple[int, int, Value]]:
        panels = self.panels
        kinds: list[tuple[int, int, Value]] = []
        mixed = panels.full and panels.tail_channels
        is_tail = self.b.compare("eq", self.b.index, local, str(panels.full)) if mixed else TRUE
        if panels.full:
            test = self.b.op("xor", I1, is_tail, "true") if mixed else TRUE
            kinds.append((panels.vectors, panels.vectors * panels.lanes, test))
        if panels.tail_channels:
            kinds.append((panels.tail_vectors, panels.tail_channels, is_tail))
        return kinds

    def body(
        self, rows: int, columns: int, vectors: int, channels: int, place: TilePointers
    ) -> None:
        """One tile: ``channels`` of ``vectors`` vectors are stored."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Pixels:
    """A tile of pixels: pointers, and the sizes it may have with their tests."""

    x: Value
    y: Value
    residual: Value
    rows: list[tuple[int, Value]]
    columns: list[tuple[int, Value]]


@dataclass(frozen=True)
class Channels:
    """A panel of channels: bytes to its group's input, its first output channel, bytes to its
    weights, its position among packed constants, and the sizes it may have with their tests."""

    x_offset: Value
    first: Value
    weights: Value
    packed_first: Value
    kinds: list[tuple[int, int, Value]]


@dataclass(frozen=True)
class TilePointers:
    """The place of a tile: pointers to its input, output, weights and residual, and the position of
    its first channel among the packed constants."""

    x: Value
    y: Value
    w: Value
    first: Value
    residual: Value
