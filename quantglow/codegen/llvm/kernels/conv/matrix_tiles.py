"""Convolution on matrix tiles: as many pixels as a register has rows, by a vector of channels, by
the bytes of a row, in one instruction.

The rows of an input tile are neighboring pixels, read where they lie; those of a weight tile are
the steps of a run, as packed for dot products.  Blocks of pixels by vectors of channels are summed
in four registers that begin with the bias (``tile_plan``), then stored to the
stack, from where the sums go through the usual epilogue: that of one group between the products of
the next one, because tiles and vectors are computed by different units.  A store of a register
waits for its products and holds up the code after it, so it stands where the next group needs the
register; or behind the next product and its share of the epilogue, where a group has one step.
Sums are int32 and wrap, as everywhere.

Where a run is no multiple of a row, its last row is moved back, and weights are zero where it
overlaps the one before, so nothing beyond a run's last step is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.isa.interface import LINE_NBYTES
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout
from quantglow.codegen.llvm.kernels.conv.loops import TilePointers
from quantglow.codegen.llvm.kernels.conv.tile_plan import (
    BlockGrid,
    Pass,
    Pixel,
    TileBlock,
    TilesPlan,
)
from quantglow.codegen.llvm.values import Operand, Value

MOST_UNROLLED = 80
"""Maximum number of unrolled steps of a group; longer sums are loops, and end alone."""

Emit = Callable[[], None]
Stores = Mapping[int, Emit]
Begin = Callable[[int, int], None]


@dataclass(frozen=True)
class GroupSums:
    """A group: where its sums lie on the stack, its blocks, the place of its first pixel, and its
    number in the tile, or among all that use a panel where that comes from far away."""

    at: Value
    blocks: tuple[TileBlock, ...]
    place: TilePointers
    number: Value


@dataclass(frozen=True)
class PendingGroup:
    """The rest of a group whose products are added: the store of each register, then its
    epilogue."""

    stores: Stores = field(default_factory=dict)
    ends: Sequence[Emit] = ()

    def emit(self) -> None:
        for emit in (*self.stores.values(), *self.ends):
            emit()


@dataclass
class TilesConvKernel(TilesPlan):
    """Generator of one convolution kernel that sums in tile registers."""

    def enter(self) -> None:
        """Room for the sums of two groups; the sizes of registers."""
        b = self.b
        self.sums = b.allocate(2 * self._sums_nbytes, LINE_NBYTES)
        self.matrix_tiles.configure(b, self._register_sizes())

    def leave(self) -> None:
        self.matrix_tiles.release(self.b)

    @property
    def _tile_nbytes(self) -> int:
        return self.blocks.positions * self._row_nbytes

    @property
    def _sums_nbytes(self) -> int:
        """Bytes of the sums of a group."""
        return self.blocks.blocks * self._panel_vectors * self._tile_nbytes

    def body(
        self, rows: int, columns: int, vectors: int, channels: int, place: TilePointers
    ) -> None:
        """The groups of a tile, the end of each between the products of the next."""
        b, grid = self.b, self.blocks.grid(rows, columns)
        self._keep_constants(place, vectors)
        waiting = PendingGroup()
        if grid.count:
            self._add_all(self._sums(grid, "0", place), vectors, waiting)
        if grid.count > 1:
            with b.loop(1, grid.count) as index:
                before = self._sums(grid, b.op("sub", b.index, index, "1"), place)
                waiting = self._waiting(before, vectors, channels)
                self._add_all(self._sums(grid, index, place), vectors, waiting)
        if grid.count:
            last = self._sums(grid, str(grid.count - 1), place)
            waiting = self._waiting(last, vectors, channels)
        if grid.remainder:
            remainder = self._sums_at(
                grid.remainder, str(grid.count), self._moved(place, *grid.remainder_at)
            )
            self._add_all(remainder, vectors, waiting)
            waiting = self._waiting(remainder, vectors, channels)
        waiting.emit()

    def _keep_constants(self, place: TilePointers, vectors: int) -> None:
        """Load what all pixels of a panel need once: to LLVM, tile instructions write anywhere."""
        load = super()._load_multipliers
        self.multipliers = [load(place.first, v) for v in range(vectors)]

    def _load_multipliers(self, first: Value, index: int) -> Value:
        return self.multipliers[index]

    def _sums(self, grid: BlockGrid, index: Operand, place: TilePointers) -> GroupSums:
        """One of the equal groups."""
        height, width = self.blocks.size
        row, column = "0", index
        if grid.rows > 1:
            row, column = self.b.divide(index, grid.columns)
        at = self._moved(place, self.b.mul(row, height), self.b.mul(column, width))
        return self._sums_at(grid.group, index, at)

    def _sums_at(
        self, blocks: tuple[TileBlock, ...], index: Operand, place: TilePointers
    ) -> GroupSums:
        """A group; neighbors have different rooms for their sums."""
        b = self.b
        odd = str(int(index) % 2) if index.isdigit() else b.op("and", b.index, index, "1")
        room = b.at(self.sums, b.mul(odd, self._sums_nbytes))
        if self.streams_weights:
            index = b.add(index, b.mul(self.turn, self._tile_groups))
        return GroupSums(room, blocks, place, b.constant(index))

    def _moved(self, place: TilePointers, rows: Value | int, columns: Value | int) -> TilePointers:
        """The place so many rows and columns further."""
        b, g = self.b, self.geometry

        def at(pointer: Value, image: ImageLayout, strides: tuple[int, int]) -> Value:
            down, across = strides[0] * image.row_pitch, strides[1] * image.column_pitch
            for count, nbytes in ((str(rows), down), (str(columns), across)):
                pointer = pointer if count == "0" else b.at(pointer, b.mul(count, nbytes))
            return pointer

        residual = place.residual
        if g.residual is not None:
            residual = at(residual, g.residual, (1, 1))
        return replace(
            place, x=at(place.x, g.x, g.strides), y=at(place.y, g.y, (1, 1)), residual=residual
        )

    # -- ends

    def _waiting(self, sums: GroupSums, vectors: int, channels: int) -> PendingGroup:
        """The stores of a group's last pass, and the epilogue, one pixel after the other."""

        def end(index: int, position: int, pixel: Pixel) -> None:
            totals = [self._sum(sums.at, index, v, position) for v in range(vectors)]
            self.store(totals, *pixel, channels, sums.place)

        ends = [
            partial(end, index, position, pixel)
            for index, block in enumerate(sums.blocks)
            for position, pixel in enumerate(block.pixels)
            if pixel is not None
        ]
        passes = self._passes(vectors)
        if self._is_single(passes):
            return PendingGroup({}, ends)  # stored already
        return PendingGroup(self._stores(passes[-1], sums), ends)

    def _stores(self, each: Pass, sums: GroupSums) -> dict[int, Emit]:
        """The store of each register after a pass."""

        def store(register: int, block: int, vector: int) -> None:
            at = self._tile_at(sums.at, block, vector)
            self.matrix_tiles.store(self.b, register, at, self._row_nbytes)

        registers = {
            self._sum_register(block, v): (block, each.first + v)
            for block in range(len(sums.blocks))
            for v in range(each.vectors)
        }
        return {register: partial(store, register, *at) for register, at in registers.items()}

    def _tile_at(self, sums: Value, block: int, vector: int) -> Value:
        """The address of the sums of a block and a vector."""
        return self.b.at(sums, (block * self._panel_vectors + vector) * self._tile_nbytes)

    def _sum(self, sums: Value, block: int, vector: int, position: int) -> Value:
        at = self.b.at(self._tile_at(sums, block, vector), position * self._row_nbytes)
        return self.b.load(self.dot.kind, at, align=LINE_NBYTES)

    # -- products

    def _add_all(self, sums: GroupSums, vectors: int, waiting: PendingGroup) -> None:
        """The products of a group, with what waits of the one before between them: a register is
        stored where its next sum begins, and the epilogue follows when all are."""
        passes, stores = self._passes(vectors), waiting.stores
        if self._is_single(passes):
            self._add_single(passes[0], sums, waiting.ends)
            return
        if len(passes) * self._steps > MOST_UNROLLED:
            turns, held, add = len(passes), 0, self._add_looped
        else:
            of_step = [len(sums.blocks) * each.vectors for each in passes]
            turns, held, add = sum(of_step) * self._steps, of_step[0] - 1, self._add_unrolled
        left, shares = iter(waiting.ends), evenly(len(waiting.ends), turns - held)
        for each in passes:
            after = self._stores(each, sums)
            for register in sorted(stores.keys() - after.keys()):
                stores[register]()
            for _ in add(each, sums, stores):
                if held:  # registers are not stored yet that the epilogue reads
                    held -= 1
                    continue
                for emit in islice(left, next(shares)):
                    emit()
            stores = after

    def _is_single(self, passes: list[Pass]) -> bool:
        """Whether a group has but one step."""
        return self._steps == len(passes) == 1

    def _add_single(self, each: Pass, sums: GroupSums, ends: Sequence[Emit]) -> None:
        """The only step of a group: few products, so that each sum is stored behind the next one
        and its share of the epilogue."""
        stores = list(self._stores(each, sums).values())
        left, shares = iter(ends), evenly(len(ends), len(stores))
        for number, _ in enumerate(self._add_unrolled(each, sums, {})):
            if number:
                stores[number - 1]()
            for emit in islice(left, next(shares)):
                emit()
        stores[-1]()

    def _add_unrolled(self, each: Pass, sums: GroupSums, stores: Stores) -> Iterator[None]:
        """All steps of a pass one after the other.  Yields after each product."""
        for step in range(self._steps):
            run, part = divmod(step, len(self._parts))
            outer, inner = divmod(run, self.geometry.runs.inner)
            x = self._locate_run(sums.place.x, str(outer), str(inner))
            w = self.b.at(sums.place.w, self._pass_offset(each) + step * self._step_nbytes(each))
            self._prefetch_ahead(sums, str(self._first_step(each) + step))
            begin = None if step else partial(self._begin, each, sums, stores)
            yield from self._add_part(each, sums, self._locate_part(x, part), w, begin)

    def _add_looped(self, each: Pass, sums: GroupSums, stores: Stores) -> Iterator[None]:
        """All steps of a pass, as loops.  Yields after them."""
        b, runs, parts = self.b, self.geometry.runs, len(self._parts)

        def add(x: Value, w: Value) -> None:
            for _ in self._add_part(each, sums, x, w):
                pass

        for block in range(len(sums.blocks)):
            for v in range(each.vectors):
                self._begin(each, sums, stores, block, v)
        weights, step_nbytes = b.at(sums.place.w, self._pass_offset(each)), self._step_nbytes(each)
        overlaps = self._parts[-1].zeros > 0
        with b.loop(0, runs.outer) as outer, b.loop(0, runs.inner) as inner:
            run = b.add(b.mul(outer, runs.inner), inner)
            x = self._locate_run(sums.place.x, outer, inner)
            w = b.at(weights, b.mul(run, parts * step_nbytes))
            step = b.add(b.mul(run, parts), self._first_step(each))
            with b.loop(0, parts - overlaps) as part:
                self._prefetch_ahead(sums, b.add(step, part))
                row = b.at(x, b.mul(part, self._row_nbytes))
                add(row, b.at(w, b.mul(part, step_nbytes)))
            if overlaps:
                self._prefetch_ahead(sums, b.add(step, parts - 1))
                add(self._locate_part(x, parts - 1), b.at(w, (parts - 1) * step_nbytes))
        yield

    def _prefetch_ahead(self, sums: GroupSums, step: Operand) -> None:
        """Prefetch weights as fast as all groups of a panel use them."""
        if not self.streams_weights:
            return
        b, share = self.b, self.share_nbytes
        steps = b.add(b.mul(sums.number, self._group_steps), step)
        at = b.at(sums.place.w, b.mul(steps, share))
        self.prefetch(b.at(at, self.ahead_nbytes), share)

    def _locate_run(self, x: Value, outer: Operand, inner: Operand) -> Value:
        """The address of a run of the first pixel."""
        b, runs = self.b, self.geometry.runs
        for index, pitch in ((outer, runs.outer_pitch), (inner, runs.inner_pitch)):
            x = x if index == "0" else b.at(x, b.mul(index, pitch))
        return x

    def _locate_part(self, run: Value, part: int) -> Value:
        return self.b.at(run, self._parts[part].first * STEP_NBYTES)

    def _begin(self, each: Pass, sums: GroupSums, stores: Stores, block: int, vector: int) -> None:
        """A sum begins with the bias, one row for all pixels; what the register holds is stored."""
        register = self._sum_register(block, vector)
        if register in stores:
            stores[register]()
        bias = self._load_vector(self.bias, sums.place.first, each.first + vector)
        self.matrix_tiles.load(self.b, register, bias, 0)

    def _add_part(
        self, each: Pass, sums: GroupSums, x: Value, w: Value, begin: Begin | None = None
    ) -> Iterator[None]:
        """Add the products of up to a row of bytes of each pixel.  Yields after each product."""
        b, tiles, row_nbytes = self.b, self.matrix_tiles, self._row_nbytes
        pitch = self.geometry.strides[1] * self.geometry.x.column_pitch
        of_pixels, of_weights = self._operand_registers
        load_weights = tiles.load_past_first_cache if self.fills_first_cache else tiles.load
        for index, block in enumerate(sums.blocks):
            pixels = of_pixels[index % len(of_pixels)]
            at = b.at(x, self.geometry.input_offset(block.row, block.column))
            tiles.load(b, pixels, at, pitch)
            for v in range(each.vectors):
                weights = of_weights[v % len(of_weights)]
                if index == 0 or each.vectors > len(of_weights):
                    at = b.at(w, v * self._part_steps * row_nbytes)
                    load_weights(b, weights, at, row_nbytes)
                if begin is not None:
                    begin(index, v)
                tiles.multiply(b, self._sum_register(index, v), pixels, weights)
                yield

    def _sum_register(self, block: int, vector: int) -> int:
        return block * self._pass_vectors + vector


def evenly(total: int, count: int) -> Iterator[int]:
    """``count`` shares of ``total`` that differ by one at most."""
    for index in range(count):
        yield total * (index + 1) // count - total * index // count
