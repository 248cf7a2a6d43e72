"""Blocks of pixels and vectors of channels that share matrix registers in a convolution.

Four registers hold sums: ``blocks`` blocks of pixels by ``vectors`` vectors of channels.  A *group*
is the pixels of those blocks; a panel of channels takes as many passes over a group as it has
vectors.  All blocks of a kernel have the same number of positions, so registers are configured
once: the last block of a group that has fewer pixels is moved back, and the results that another
block has are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.support.classes import cached_property

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

    def _block(self, row: int, first: int, known: int) -> TileBlock:
        """One block; its first ``known`` results are those of another one."""
        places = range(first, first + self.positions)
        pixels = [
            None if index < known else self._pixel(row, place) for index, place in enumerate(places)
        ]
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
