"""Plans that first fit alone does not find."""

from __future__ import annotations

import pytest

from quantglow.ir.program.program import Buffer, BufferKind
from quantglow.memory.genetic_search import search_plan
from quantglow.memory.planner import Interval, lower_bound, plan_intervals


def lives(*rows: tuple[int, int, int]) -> list[Interval]:
    """Intervals from (begin, end, multiples of 64 bytes)."""
    return [
        Interval(Buffer(f"b{i}", BufferKind.TEMP, 64 * size), begin, end)
        for i, (begin, end, size) in enumerate(rows)
    ]


HARD = lives(
    (4, 7, 2), (10, 12, 2), (3, 5, 2), (1, 6, 2), (11, 14, 1), (6, 8, 5), (0, 3, 2), (1, 4, 4)
)  # fmt: skip


def test_a_search_reaches_the_bound_where_first_fit_does_not() -> None:
    start = plan_intervals(HARD)
    assert start.peak_nbytes > start.lower_bound_nbytes
    assert search_plan(HARD, start).peak_nbytes == start.lower_bound_nbytes


def test_a_plan_at_its_bound_stays() -> None:
    intervals = lives((0, 2, 1), (1, 3, 2))
    start = plan_intervals(intervals)
    assert search_plan(intervals, start) is start


@pytest.mark.parametrize("placements", [0, 1])
def test_without_work_the_plan_stays(placements: int) -> None:
    start = plan_intervals(HARD)
    assert search_plan(HARD, start, placements) is start


def test_the_bound_of_the_plan_is_that_of_its_lives() -> None:
    actual = search_plan(HARD, plan_intervals(HARD))
    assert actual.lower_bound_nbytes == lower_bound(HARD)
