"""Batches have the size that was measured to be the fastest for each sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quantglow.runtime.serving.calls import MOST_KINDS, TRIALS, BatchSpeed

SIZES = range(1, 9)


def measured(cost: Callable[[int], float], runs: int = 100) -> tuple[BatchSpeed, list[int]]:
    """The speed after runs of the sizes that it chose, each of which takes ``cost`` seconds."""
    speed, chosen = BatchSpeed(), []
    for _ in range(runs):
        chosen.append(speed.best("kind", SIZES))
        speed.record("kind", chosen[-1], cost(chosen[-1]))
    return speed, chosen


@pytest.mark.parametrize(
    ("cost", "fastest"),
    [(lambda n: 1.0, 8), (lambda n: n**2, 1), (lambda n: abs(n - 4) + n, 4)],
    ids=["the same for any size", "squared", "least for 4"],
)
def test_the_fastest_size_for_each_sample_is_chosen(
    cost: Callable[[int], float], fastest: int
) -> None:
    speed, _ = measured(cost)
    assert speed.best("kind", SIZES) == fastest


def test_powers_of_two_are_tried_often_enough_and_no_other_size() -> None:
    _, chosen = measured(lambda n: 1.0)
    assert {size: chosen.count(size) for size in (1, 2, 4)} == dict.fromkeys((1, 2, 4), TRIALS)
    assert set(chosen) == {1, 2, 4, 8}


def test_a_slow_first_run_that_compiles_does_not_decide() -> None:
    waits = iter([100.0])
    speed, _ = measured(lambda n: next(waits, 1.0) if n == 8 else float(n))
    assert speed.best("kind", SIZES) == 8


def test_calls_of_several_samples_are_joined_to_powers_of_two_of_them() -> None:
    speed, chosen = BatchSpeed(), []
    for _ in range(20):
        chosen.append(speed.best("kind", [3, 6, 9, 12]))
        speed.record("kind", chosen[-1], 1.0)
    assert {size: chosen.count(size) for size in (3, 6, 9)} == {3: TRIALS, 6: TRIALS, 9: 0}
    assert chosen[-1] == 12


def test_whether_calls_may_be_joined_is_remembered_for_each_kind() -> None:
    speed = BatchSpeed()
    speed.note("kind", False)
    assert [speed.joins(kind) for kind in ("kind", "another kind")] == [False, None]


def test_each_kind_of_calls_has_its_own_speed() -> None:
    speed, _ = measured(lambda n: 1.0)
    assert speed.best("another kind", SIZES) == 1


def test_kinds_are_forgotten_where_there_are_many() -> None:
    speed, _ = measured(lambda n: 1.0)
    before = speed.best("kind", SIZES)
    for kind in range(MOST_KINDS):
        speed.record(kind, 1, 1.0)
    assert (before, speed.best("kind", SIZES)) == (8, 1)
