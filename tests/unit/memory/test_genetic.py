"""The genetic algorithm on a problem whose best answer is known."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.memory.genetic_search import Genetic, Keys, order_keys

LENGTH = 8


class Inversions:
    """Counts the pairs of keys that are out of order, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, keys: Keys) -> int:
        self.asked += 1
        return sum(a > b for i, a in enumerate(keys) for b in keys[i + 1 :])


def search(cost: Inversions, evaluations: int, starts: Sequence[Keys], seed: int = 0) -> Keys:
    return Genetic(seed=seed).search(LENGTH, cost, starts, evaluations, goal=0).keys


WORST = order_keys(range(LENGTH))[::-1]


def test_it_finds_the_best_candidate_and_stops_there() -> None:
    cost = Inversions()
    assert sorted(actual := search(cost, 5000, [WORST])) == actual
    assert cost.asked < 5000


def test_it_makes_so_many_evaluations_beyond_its_starts() -> None:
    cost = Inversions()
    search(cost, 100, [WORST, WORST])
    assert cost.asked == 102


def test_it_never_loses_the_best_start() -> None:
    best = [*order_keys(range(LENGTH))[:-2], 0.9, 0.8]
    assert Inversions()(search(Inversions(), 3, [WORST, best])) <= 1


def test_equal_seeds_find_equal_candidates_and_others_do_not() -> None:
    one, same, other = (search(Inversions(), 60, [WORST], seed) for seed in (0, 0, 1))
    assert one == same != other


def test_keys_of_an_order_sort_to_it() -> None:
    order = [2, 0, 3, 1]
    keys = order_keys(order)
    assert sorted(range(4), key=keys.__getitem__) == order
