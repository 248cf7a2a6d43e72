"""Plan of a convolution on matrix registers: sizes, order and packed weights, without code.

Four registers hold sums: ``blocks`` blocks of pixels by ``vectors`` vectors of channels.  A *group*
is the pixels of those blocks.  A panel has up to four vectors of channels, whose results are stored
together.  A group is summed in *passes*, each over as many vectors of the panel as the registers
hold, and packed weights lie in the order of passes.

All blocks of a kernel have the same number of positions, so registers are configured once: the last
block of a group that has fewer pixels is moved back, and the results that another block has are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.isa.interface import LINE_NBYTES, MatrixTiles
from quantglow.codegen.llvm.kernels.contraction.geometry import panel_steps
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.ir.symbolic.size import Dim, Size, decide, decide_min, is_free
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

MOST_VECTORS = 4
"""Maximum number of vectors of a panel."""
MOST_GROUPS = 16
"""Maximum number of groups of a tile.  Between tiles, products and epilogues do not overlap."""
NEAR_NBYTES = 16384
"""Bytes of a panel's weights that stay in the first-level cache beside pixels and sums."""
FIRST_CACHE_NBYTES = 49152
"""Size of the first-level cache, in bytes."""
FEW_NBYTES = 32768
"""Bytes of the pixels of four blocks that stay in the first-level cache beside sums."""
AHEAD_NBYTES = 16384
"""Weights that come from far away are prefetched so many bytes ahead; 8 to 32 KB are as good."""
FREE_IMAGES = 4
"""Images for which prefetches are spread where a batch is free: code serves batches of any size."""
LEAST_USE = 0.25
"""The share of a tile's products that must be wanted, else vectors are faster.  With 0.12 or 0.4,
five networks take 3 % more or less; with 0.6, up to 12 % more."""


@dataclass(frozen=True)
class TilePart:
    """A row of a register within a run: its first step, the steps of it whose weights are zero."""

    first: int
    zeros: int


@dataclass(frozen=True)
class Pass:
    """Vectors of a panel that are summed at once."""

    first: int
    vectors: int


@dataclass
class TilesPlan(ConvKernel):
    """Sizes, order and constants of one convolution on matrix registers."""

    @property
    def applies(self) -> bool:
        """Whether the target has matrix registers and enough of each is used."""
        x = self.step.inputs[0].type
        if self.target.isa.tiles is None or x.dtype is not DType.U8 or x.is_empty:
            return False
        height, width = self.image_size
        pixels = height * width / (self.blocks.count * self.matrix_tiles.rows)
        nbytes = self.geometry.runs.nbytes
        depth = nbytes / (-(-nbytes // self._row_nbytes) * self._row_nbytes)
        channels = self.channels / (-(-self.channels // self.dot.lanes) * self.dot.lanes)
        return pixels * depth * channels >= LEAST_USE

    @cached_property
    def matrix_tiles(self) -> MatrixTiles:
        """The matrix registers of the target."""
        tiles = self.target.isa.tiles
        assert tiles is not None
        return tiles

    # -- pixels

    @cached_property
    def tile(self) -> Tile:
        """Some groups of pixels by a panel of channels."""
        height, width = self.blocks.size
        vectors = self._panel_vectors
        if self.blocks.is_flat or self._is_free:
            return Tile(height, width, vectors)
        rows, columns = self.image_size
        across = even_share(-(-columns // width), MOST_GROUPS)
        down = 1
        if across * width == columns:
            down = even_share(-(-rows // height), max(MOST_GROUPS // across, 1))
        return Tile(min(height * down, rows), min(across * width, columns), vectors)

    @property
    def _is_free(self) -> bool:
        y = self.geometry.y
        return is_free(y.height) or is_free(y.width)

    @cached_property
    def blocks(self) -> TileBlocks:
        """How pixels are cut: into few blocks, as long as possible."""
        height, width = self.image_size
        plans = [self._blocks_by_rows(height, width)]
        if self._flat_pitch and height > 1 and width < self.matrix_tiles.rows:
            length = (height - 1) * self._flat_pitch + width
            count = -(-length // self.matrix_tiles.rows)
            if count <= SUMS:
                positions = -(-length // count)
                plans.append(TileBlocks(height, width, count, positions, self._flat_pitch))
        return min(plans, key=lambda blocks: blocks.count)

    def _blocks_by_rows(self, height: int, width: int) -> TileBlocks:
        """Blocks that lie in one row each."""
        rows, count = self.matrix_tiles.rows, self._group_blocks
        if height > 1 and width <= rows:
            return TileBlocks(height, width, min(count, height), width)
        return TileBlocks(height, width, count, row_positions(width, rows, count))

    @property
    def _group_blocks(self) -> int:
        """Blocks of a group: as many as sums where each vector's weights are then read once, or
        twice with pixels that stay near; one where all weights of a panel stay near."""
        height, width = self.image_size
        blocks = height * -(-width // self.matrix_tiles.rows)
        if self._panel_vectors == 1 or blocks <= SUMS:
            return SUMS
        positions = min(width, self.matrix_tiles.rows)
        if blocks <= 2 * SUMS and decide(self._pixels_nbytes(positions) <= FEW_NBYTES):
            return SUMS
        if self._panel_vectors > 2 and self.vector_steps_nbytes <= NEAR_NBYTES:
            return 1
        return 2

    def _pixels_nbytes(self, positions: int) -> Dim:
        """Bytes that as many blocks as sums read, with so many positions each."""
        g = self.geometry
        return SUMS * positions * decide_min(g.strides[1] * g.x.column_pitch, g.runs.nbytes)

    @property
    def _flat_pitch(self) -> int:
        """Positions of the input from one row of output pixels to the next, if all lie at equal
        distances; else 0."""
        g = self.geometry
        if self._is_free or decide(g.y.count * g.y.height == 1):
            return 0
        down, across = g.strides[0] * g.x.row_pitch, g.strides[1] * g.x.column_pitch
        is_even = decide(across != 0) and decide(down % across == 0)
        return int(down // across) if is_even else 0

    # -- depth

    @property
    def _row_nbytes(self) -> int:
        return self.matrix_tiles.row_nbytes

    @property
    def _part_steps(self) -> int:
        """Steps in a row of a register."""
        return min(self._row_nbytes // STEP_NBYTES, self.geometry.runs.steps)

    @cached_property
    def _parts(self) -> list[TilePart]:
        """The rows that cover a run."""
        steps, size = self.geometry.runs.steps, self._part_steps
        starts = range(0, steps, size)
        return [
            TilePart(min(start, steps - size), max(start - (steps - size), 0)) for start in starts
        ]

    @property
    def _runs(self) -> int:
        return self.geometry.runs.outer * self.geometry.runs.inner

    @property
    def _steps(self) -> int:
        """Steps of all runs."""
        return self._runs * len(self._parts)

    @property
    def vector_steps_nbytes(self) -> int:
        return self._steps * self._part_steps * self._row_nbytes

    @property
    def fills_first_cache(self) -> bool:
        """Whether a panel's weights fill the first-level cache, so that each group reads them from
        the second-level one."""
        return self._panel_vectors * self.vector_steps_nbytes >= FIRST_CACHE_NBYTES

    # -- passes

    @property
    def _panel_vectors(self) -> int:
        return min(MOST_VECTORS, -(-self.channels // self.dot.lanes))

    @property
    def _pass_vectors(self) -> int:
        """Vectors that are summed at once."""
        return {1: SUMS, 2: SUMS // 2}.get(self.blocks.blocks, 1)

    def _passes(self, vectors: int) -> list[Pass]:
        """The passes of a panel of ``vectors``."""
        most = self._pass_vectors
        return [Pass(first, min(most, vectors - first)) for first in range(0, vectors, most)]

    def _step_nbytes(self, each: Pass) -> int:
        """Bytes of the weights of one step of a pass."""
        return each.vectors * self._part_steps * self._row_nbytes

    def _pass_offset(self, each: Pass) -> int:
        """Bytes from a panel's weights to those of a pass."""
        return each.first * self.vector_steps_nbytes

    def _first_step(self, each: Pass) -> int:
        """Steps of a group before those of a pass."""
        return each.first // self._pass_vectors * self._steps

    # -- registers

    def _register_sizes(self) -> list[tuple[int, int]]:
        """Rows, and bytes of a row, of all registers: sums, pixels, weights."""
        positions, steps, row_nbytes = self.blocks.positions, self._part_steps, self._row_nbytes
        of_pixels, of_weights = self._operand_registers
        sizes = [(positions, row_nbytes)] * SUMS
        sizes += [(0, 0)] * (self.matrix_tiles.registers - SUMS)
        for register in of_pixels:
            sizes[register] = (positions, steps * STEP_NBYTES)
        for register in of_weights:
            sizes[register] = (steps, row_nbytes)
        return sizes

    @property
    def _operand_registers(self) -> tuple[Sequence[int], Sequence[int]]:
        """Registers of blocks of pixels, and of vectors of weights, used in turn."""
        return {4: ([4], [5, 6, 7]), 2: ([4, 5], [6, 7]), 1: ([5, 6, 7], [4])}[self._pass_vectors]

    # -- constants

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """For each panel, pass, run, part of a run and vector: the steps of the part."""
        packed = []
        for steps in panel_steps(w, self.geometry.runs, channels):
            vectors = steps.shape[1]
            by_run = steps.reshape(self._runs, -1, vectors, self._row_nbytes).transpose(0, 2, 1, 3)
            for each in self._passes(vectors):
                of_pass = by_run[:, each.first : each.first + each.vectors]
                parts = [self._packed(of_pass, part) for part in self._parts]
                packed.append(np.stack(parts, axis=1).reshape(-1))
        return np.concatenate(packed)

    def _packed(self, vectors: Array, part: TilePart) -> Array:
        """[runs, vectors, steps, bytes] of one part, zeros where it overlaps another."""
        steps = vectors[:, :, part.first : part.first + self._part_steps].copy()
        steps[:, :, : part.zeros] = 0
        return steps

    # -- prefetch

    @property
    def streams_weights(self) -> bool:
        """Whether weights come from far away, panel by panel."""
        return self.panels_outer and not self._is_free and self.target.isa.prefetches

    @property
    def _group_steps(self) -> int:
        """Steps of a group."""
        return -(-self._panel_vectors // self._pass_vectors) * self._steps

    @cached_property
    def _tile_groups(self) -> int:
        """Groups of a whole tile."""
        grid = self.blocks.grid(self.tile.rows, self.tile.columns)
        return grid.count + (1 if grid.remainder else 0)

    @cached_property
    def _groups(self) -> int:
        """Groups of all images."""
        height, width = self.blocks.size
        rows, columns = self.image_size
        count = self.geometry.y.count
        images = FREE_IMAGES if isinstance(count, Size) else count
        return images * -(-rows // height) * -(-columns // width)

    @property
    def share_nbytes(self) -> int:
        """Whole lines that each step prefetches: all groups of a panel share the next one."""
        steps = self._groups * self._group_steps
        return -(-self.panel_nbytes // (steps * LINE_NBYTES)) * LINE_NBYTES

    @property
    def ahead_nbytes(self) -> int:
        """How far ahead of a panel's weights prefetches begin: those of the next panel are there
        when its first group begins."""
        return self.panel_nbytes * (self._groups - 1) // self._groups + AHEAD_NBYTES


def even_share(groups: int, most: int) -> int:
    """Groups of a tile, ``most`` at most, such that two threads share ``groups`` as evenly as
    possible.  Few numbers are tried, so that rows of many lengths have the same text."""
    if groups <= most:
        return groups
    sizes = range(most, most - most // 4 - 1, -1)
    return min(sizes, key=lambda size: -(-groups // (2 * size)) * size)


SUMS = 4
"""Registers that hold sums."""
Pixel = tuple[int, int]


@dataclass(frozen=True)
class TileBlock:
    """The positions of one register: the first one, and the pixel of each; None for a position
    whose result nobody stores."""

    row: int
    column: int
    pixels: tuple[Pixel | None, ...]


@dataclass(frozen=True)
class BlockGrid:
    """A tile as ``rows`` x ``columns`` equal groups, and a last smaller one at ``remainder_at``."""

    rows: int
    columns: int
    group: tuple[TileBlock, ...]
    remainder: tuple[TileBlock, ...] = ()
    remainder_at: Pixel = (0, 0)

    @property
    def count(self) -> int:
        """Number of equal groups."""
        return self.rows * self.columns


@dataclass(frozen=True)
class TileBlocks:
    """How images of ``height`` x ``width`` pixels are cut into blocks.

    ``blocks``     blocks of a group
    ``positions``  of a block: neighbors in memory
    ``pitch``      positions from one row of pixels to the next where blocks go on from row to row,
                   through what lies between them; 0 where each block lies in one row
    """

    height: int
    width: int
    blocks: int
    positions: int
    pitch: int = 0

    @property
    def is_flat(self) -> bool:
        """Whether blocks go on from row to row."""
        return self.pitch > 0

    @property
    def by_rows(self) -> bool:
        """Whether a block is a row of the image."""
        return not self.is_flat and self.height > 1 and self.positions == self.width

    @cached_property
    def size(self) -> Pixel:
        """Rows and columns of a group."""
        if self.is_flat:
            return self.height, self.width
        if self.by_rows:
            return min(self.blocks, self.height), self.width
        return 1, min(self.blocks * self.positions, self.width)

    @property
    def count(self) -> int:
        """Blocks of an image."""
        if self.is_flat:
            return self.blocks
        return self.height * -(-self.width // self.positions)

    def grid(self, rows: int, columns: int) -> BlockGrid:
        """A tile of whole groups and a remainder."""
        height, width = self.size
        down, rows_left = divmod(rows, height)
        across, columns_left = divmod(columns, width)
        group = self._group(height, width)
        if columns_left:
            assert rows == 1
            return BlockGrid(1, across, group, self._group(1, columns_left), (0, across * width))
        if rows_left:
            return BlockGrid(
                down, across, group, self._group(rows_left, columns), (down * height, 0)
            )
        return BlockGrid(down, across, group)

    def _group(self, rows: int, columns: int) -> tuple[TileBlock, ...]:
        """The blocks of so many rows and columns."""
        if self.by_rows:
            return tuple(self._block(row, 0, 0) for row in range(rows))
        if self.is_flat:
            return self._run((rows - 1) * self.pitch + columns)
        return self._run(columns)

    def _run(self, length: int) -> tuple[TileBlock, ...]:
        """Blocks that cover positions next to each other, the last one moved back."""
        blocks, size = [], self.positions
        for start in range(0, length, size):
            first = min(start, length - size)
            blocks.append(self._block(0, first, start - first))
        return tuple(blocks)

    def _block(self, row: int, first: int, repeated: int) -> TileBlock:
        """One block; its first ``repeated`` results are those of another one."""
        places = range(first + repeated, first + self.positions)
        pixels = [*[None] * repeated, *(self._pixel(row, place) for place in places)]
        return TileBlock(row, first, tuple(pixels))

    def _pixel(self, row: int, place: int) -> Pixel | None:
        if not self.is_flat:
            return row, place
        down, column = divmod(place, self.pitch)
        return (down, column) if column < self.width else None


def row_positions(width: int, rows: int, blocks: int) -> int:
    """Positions of each block where a row of pixels is cut into groups of ``blocks`` blocks of at
    most ``rows`` positions."""
    pieces = -(-width // (rows * blocks)) * blocks if width > rows * blocks else -(-width // rows)
    return -(-width // pieces)
