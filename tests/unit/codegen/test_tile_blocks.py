"""How matrix registers share the pixels of a convolution: each pixel is stored once, none is read
that its row has not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.x86.levels import AMX
from quantglow.codegen.llvm.kernels.conv.tile_plan import (
    TileBlock,
    TileBlocks,
    TilesPlan,
    even_share,
    row_positions,
)
from quantglow.codegen.llvm.targets import level_target
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from tests.matrix.harness import planned
from tests.matrix.test_llvm_tiles import convolution

ROWS = 16


def plan(size: tuple[int, int], c: int, o: int, kernel: int = 1, stride: int = 1) -> TilesPlan:
    """The plan of a convolution on AMX."""
    graph = convolution(size, c, o, (kernel, kernel), (stride, stride), pad=kernel // 2)
    program, _ = planned(graph)
    for step in program.instructions:
        if isinstance(step, Compute) and isinstance(step.op, Conv):
            return TilesPlan(step, step.op, level_target(AMX))
    raise AssertionError("no convolution")


def tiles(total: int, size: int) -> list[tuple[int, int]]:
    """First places and lengths of the tiles of an axis."""
    return [(start, min(size, total - start)) for start in range(0, total, size)]


def groups(
    blocks: TileBlocks, rows: int, columns: int
) -> list[tuple[int, int, tuple[TileBlock, ...]]]:
    """First pixels and blocks of the groups of a tile."""
    grid, (height, width) = blocks.grid(rows, columns), blocks.size
    actual = [
        (row * height, column * width, grid.group)
        for row in range(grid.rows)
        for column in range(grid.columns)
    ]
    return [*actual, (*grid.remainder_at, grid.remainder)] if grid.remainder else actual


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 120)),
    c=st.sampled_from([16, 64, 256]),
    o=st.sampled_from([16, 32, 64]),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 1, 2]),
)
@example((7, 7), 512, 64, 3, 1)
@example((7, 7), 512, 64, 1, 1)
@example((14, 14), 64, 64, 3, 2)
@example((56, 56), 64, 64, 3, 1)
def test_each_pixel_is_stored_once_and_none_read_beyond_its_row(
    size: tuple[int, int], c: int, o: int, kernel: int, stride: int
) -> None:
    planned_graph = plan(size, c, o, kernel, stride)
    blocks, image = planned_graph.blocks, planned_graph.geometry.y
    assert 1 <= blocks.positions <= ROWS
    length = image.width + (image.height - 1) * blocks.pitch if blocks.is_flat else image.width
    stored: Counter[tuple[int, int]] = Counter()
    for top, rows in tiles(image.height, planned_graph.tile.rows):
        for left, columns in tiles(image.width, planned_graph.tile.columns):
            for row, column, group in groups(blocks, rows, columns):
                assert len(group) <= blocks.blocks
                for block in group:
                    first = left + column + block.column
                    assert first >= 0
                    assert first + blocks.positions <= length
                    stored.update(
                        (top + row + pixel[0], left + column + pixel[1])
                        for pixel in block.pixels
                        if pixel is not None
                    )
    pixels = {(row, column) for row in range(image.height) for column in range(image.width)}
    assert stored == Counter(pixels)


@pytest.mark.parametrize(
    ("size", "c", "o", "kernel", "count"),
    [
        ((7, 7), 512, 512, 3, 4),  # 61 positions with what lies between rows: 49 of 64 are wanted
        ((7, 7), 512, 512, 1, 4),
        ((14, 14), 256, 256, 3, 14),
        ((56, 56), 64, 256, 1, 196),
        ((56, 56), 64, 64, 3, 56 * 4),
    ],
)
def test_images_are_cut_into_few_blocks(
    size: tuple[int, int], c: int, o: int, kernel: int, count: int
) -> None:
    assert plan(size, c, o, kernel).blocks.count == count


@given(width=st.integers(1, 500), blocks=st.sampled_from([1, 2, 4]))
def test_rows_are_cut_evenly(width: int, blocks: int) -> None:
    positions = row_positions(width, ROWS, blocks)
    assert 1 <= positions <= min(ROWS, width)
    least = -(-width // ROWS)
    assert -(-width // positions) <= -(-least // blocks) * blocks


@pytest.mark.parametrize(
    ("groups", "most", "expected"),
    [(1, 16, 1), (16, 16, 16), (17, 16, 12), (32, 16, 16), (49, 16, 13), (196, 16, 14), (9, 1, 1)],
)
def test_tiles_share_groups_among_two_threads(groups: int, most: int, expected: int) -> None:
    assert even_share(groups, most) == expected


def test_weights_lie_as_they_are_read() -> None:
    planned_graph = plan((14, 14), 96, 48)
    w = planned_graph.conv.w
    packed = planned_graph.packed_weights(np.asarray(w.value), planned_graph.channel_lanes())
    assert packed.nbytes == planned_graph.packed_nbytes
    parts = packed.reshape(-1, ROWS, 64)  # 96 bytes are two parts, the second half zero
    zero = (parts == 0).all(axis=2).sum(axis=1)
    assert sorted(zero.tolist()) == [0] * 3 + [8] * 3
