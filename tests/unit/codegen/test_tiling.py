"""The choice of register tiles, and how a depthwise convolution is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.x86.levels import CORES, ICE_LAKE
from quantglow.codegen.llvm.kernels.contraction.tiling import (
    WIDTHS,
    Tile,
    all_cycles,
    choose_tile,
    choose_tile_of_free_width,
    fits,
)
from quantglow.codegen.llvm.kernels.depthwise.plan import (
    BlockPlan,
    ColumnTaps,
    plan_block,
    plan_rows,
)
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve
from quantglow.ir.types import DType

COSTS = (
    StepCost(32),
    StepCost(32, core=ICE_LAKE),
    StepCost(16),
    StepCost(16, 1.0, 0.5, weights=2, operands=3, most_vectors=2),
)
sizes = st.integers(1, 40)


@given(sizes, sizes, st.integers(1, 20), st.integers(1, 300), st.sampled_from(COSTS))
def test_a_chosen_tile_fits_the_registers(
    height: int, width: int, vectors: int, steps: int, cost: StepCost
) -> None:
    tile = choose_tile(height, width, vectors, steps, cost)
    assert tile.pixels == 1 or fits(tile.pixels, tile.vectors, cost)


@given(
    sizes,
    sizes,
    st.integers(2, 20),
    st.integers(1, 300),
    st.integers(1, 14),
    st.sampled_from(COSTS[:2]),
)
def test_no_tile_of_two_vectors_is_cheaper_than_the_chosen_one(
    height: int, width: int, vectors: int, steps: int, columns: int, cost: StepCost
) -> None:
    work = height, width, vectors, steps
    other = Tile(1, min(columns, width), 2)
    assert all_cycles(choose_tile(*work, cost), *work, cost) <= all_cycles(other, *work, cost)


@given(sizes, st.integers(1, 20), st.integers(1, 300), st.sampled_from(COSTS))
def test_the_tile_of_a_free_width_is_the_cheapest_over_the_next_widths(
    width: int, vectors: int, steps: int, cost: StepCost
) -> None:
    def cycles(tile: Tile) -> float:
        widths = range(width, width + WIDTHS)
        return sum(all_cycles(tile, 1, w, vectors, steps, cost) / w for w in widths)

    tile = choose_tile_of_free_width(width, vectors, steps, cost)
    assert tile.columns <= width
    assert cycles(tile) <= cycles(choose_tile(1, width, vectors, steps, cost))


@pytest.mark.parametrize("width", [40, 64, 72, 120, 127, 128])
def test_the_tile_of_a_free_width_is_not_that_of_its_remainder(width: int) -> None:
    cost = level_target("avx2").dot_product(DType.F32).cost
    assert choose_tile_of_free_width(width, 48, 384, cost) == Tile(1, 6, 2)


@pytest.mark.parametrize(("steps", "most"), [(4, 16), (576, 28)])
def test_short_sums_take_small_tiles(steps: int, most: int) -> None:
    tile = choose_tile(112, 112, 6, steps, COSTS[0])
    assert most / 2 < tile.pixels * tile.vectors <= most


@pytest.mark.parametrize(("core", "expected"), [(Core(), Tile(1, 7, 2)), (ICE_LAKE, Tile(1, 6, 4))])
def test_the_tile_depends_on_the_core(core: Core, expected: Tile) -> None:
    assert choose_tile(1, 784, 8, 128, StepCost(32, core=core)) == expected


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_of_no_particular_core(name: str) -> None:
    assert level_target(name).core == Core()


def test_the_native_target_is_of_this_processor_s_core() -> None:
    target = resolve("native")
    assert target.core == CORES.get(target.cpu, Core())


@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_kept_columns_are_those_that_the_next_block_reads_again(
    count: int, dilation: int, step: int, columns: int
) -> None:
    taps = ColumnTaps(tuple(tap * dilation for tap in range(count)), step)
    following = {column + columns * step for column in taps.read(columns)}
    assert taps.shared(columns) == sorted(taps.read(columns) & following)


@pytest.mark.parametrize(
    ("size", "halves", "expected"),
    [
        (3, True, BlockPlan(1, 4, ((0, 1, 2, 3),), carry=True)),
        (5, True, BlockPlan(2, 2, ((0, 1),), carry=True)),
        (5, False, BlockPlan(2, 4, ((0, 1), (2, 3)), carry=False)),
        (7, True, BlockPlan(1, 2, ((0, 1),), carry=True)),
        (9, True, BlockPlan(2, 4, ((0, 1), (2, 3)), carry=False)),
    ],
)
def test_columns_stay_in_registers_where_they_fit(
    size: int, halves: bool, expected: BlockPlan
) -> None:
    taps = list(range(size))
    rows = plan_rows(14, taps, 1, 4)
    assert plan_block(rows, ColumnTaps(tuple(taps), 1), 32, halves=halves) == expected


@given(st.integers(4, 40), st.integers(4, 40), st.integers(2, 8))
def test_weights_that_are_widened_serve_many_pixels(height: int, width: int, vectors: int) -> None:
    cost = level_target("rv64gcv").dot_product(DType.I8).cost
    tile = choose_tile(height, width, vectors, 72, cost)
    assert tile.vectors == 1 and tile.pixels >= 4
