"""The choice of samples that are kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.rounding import Reservoir
from quantglow.quantization.rounding.sampling import Spread


def sample(number: int) -> Feeds:
    return {"x": np.full((2, 3), number, np.float32)}


def numbers(kept: list[Feeds]) -> list[int]:
    return [int(feeds["x"][0, 0]) for feeds in kept]


def test_spread_keeps_items_at_even_distances() -> None:
    for count in range(40):
        kept = Spread[int](5).extend(range(count)).items
        gaps = set(np.diff(kept))
        assert len(kept) <= 5 and len(gaps) <= 1 and kept[:1] == [0][:count]


@given(count=st.integers(0, 40), capacity=st.integers(1, 10), seed=st.integers(0, 5))
def test_a_reservoir_keeps_as_many_as_it_has_room_for_in_order(
    count: int, capacity: int, seed: int
) -> None:
    kept = numbers(Reservoir(capacity, seed).extend(map(sample, range(count))).samples)
    assert len(kept) == min(count, capacity)
    assert kept == sorted(kept)


@given(order=st.permutations(list(range(30))))
def test_the_order_of_the_data_does_not_matter(order: list[int]) -> None:
    expected = numbers(Reservoir(7).extend(map(sample, range(30))).samples)
    assert sorted(numbers(Reservoir(7).extend(map(sample, order)).samples)) == expected


def test_every_part_of_the_data_is_drawn_from() -> None:
    kept = np.array(numbers(Reservoir(100).extend(map(sample, range(1000))).samples))
    shares = np.histogram(kept, bins=4, range=(0, 1000))[0]
    assert shares.min() >= 12  # 25 are expected: a fair draw gives fewer in one of 400 parts


def test_another_seed_draws_others() -> None:
    draws = {
        tuple(numbers(Reservoir(5, s).extend(map(sample, range(50))).samples)) for s in range(4)
    }
    assert len(draws) == 4


def test_samples_that_are_equal_are_kept_each() -> None:
    assert len(Reservoir(3).extend([sample(1)] * 5).samples) == 3


def test_empty_and_strided_arrays_are_samples() -> None:
    odd = [{"x": np.zeros((0, 3), np.int64), "y": np.arange(12.0).reshape(3, 4)[:, ::2]}]
    assert len(Reservoir(1).extend(odd * 2).samples) == 1
