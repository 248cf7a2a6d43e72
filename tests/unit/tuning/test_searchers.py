"""Searchers on small spaces: every state once, the best one found, the same for a seed."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.support.errors import OptionError
from quantglow.tuning import optuna_search, xgboost_search
from quantglow.tuning.g_bfs import GBFS
from quantglow.tuning.n_a2c import NA2C
from quantglow.tuning.random_search import Annealing, RandomSearch
from quantglow.tuning.searchers import NOWHERE, Maker, ModelOrder, Space
from quantglow.tuning.tuner import SEARCHERS
from tests.support.effort import moderate

OWN: dict[str, Maker] = {
    "model": ModelOrder,
    "random": RandomSearch,
    "annealing": Annealing,
    "g-bfs": GBFS,
    "g-bfs, all neighbours": partial(GBFS, rho=100),
    "n-a2c": NA2C,
}
makers = st.sampled_from(list(OWN.values()))


def space_of(sizes: tuple[int, ...], hole: int = 0) -> Space:
    """A box of states, of which every ``hole``-th is missing."""
    states = list(product(*map(range, sizes)))
    kept = [s for number, s in enumerate(states) if not hole or number % hole or not number]
    coordinates = np.array(kept, np.int64)
    return Space.at(coordinates, np.ones(len(kept)))


spaces = st.builds(space_of, st.tuples(*[st.integers(1, 4)] * 3), st.sampled_from([0, 0, 3, 5, 7]))


def bowl(space: Space) -> np.ndarray:
    """Times with one minimum, in the middle."""
    middle = space.coordinates.max(axis=0) // 2
    return 1.0 + ((space.coordinates - middle) ** 2).sum(axis=1)


def visited(maker: Maker, space: Space, seed: int, asked: int, budget: int = 10**6) -> list[int]:
    """The states in the order in which a searcher asks for them."""
    searcher, times, actual = maker(space, seed), bowl(space), list[int]()
    while len(actual) < budget and (states := searcher.ask(asked)):
        assert len(states) <= asked
        for state in states:
            failed = state % 11 == 10
            searcher.tell(state, math.inf if failed else float(times[state]))
        actual += states
    return actual


@moderate
@given(maker=makers, space=spaces, seed=st.integers(0, 9), asked=st.integers(1, 9))
def test_every_state_is_asked_for_once(maker: Maker, space: Space, seed: int, asked: int) -> None:
    assert sorted(visited(maker, space, seed, asked)) == list(range(len(space)))


@moderate
@given(maker=makers, space=spaces, seed=st.integers(0, 9), asked=st.integers(1, 9))
def test_a_seed_gives_the_same_search(maker: Maker, space: Space, seed: int, asked: int) -> None:
    assert visited(maker, space, seed, asked) == visited(maker, space, seed, asked)


@given(st.sets(st.integers(0, 11), max_size=11), st.integers(0, 9))
def test_a_new_state_is_one_of_the_others(asked: set[int], seed: int) -> None:
    searcher = ModelOrder(space_of((1, 3, 4)), seed)
    searcher.asked = asked
    assert searcher.random_state() in set(range(12)) - asked


@moderate
@given(space=spaces, seed=st.integers(0, 9))
def test_moves_change_one_coordinate_by_one(space: Space, seed: int) -> None:
    state = seed % len(space)
    for end in space.neighbors(state):
        assert end != NOWHERE
        different = space.coordinates[state] != space.coordinates[end]
        assert different[0] or different.sum() == 1


@pytest.mark.parametrize("name", ["annealing", "g-bfs", "n-a2c"])
def test_neighbourhoods_lead_to_the_best_state_sooner_than_chance(name: str) -> None:
    space = space_of((2, 8, 8, 4))
    best = int(np.argmin(bowl(space)))
    orders = [[visited(OWN[n], space, s, 1, 150) for s in range(5)] for n in (name, "random")]
    places = [[[*order, best].index(best) for order in each] for each in orders]
    assert np.median(places[0]) < 0.5 * np.median(places[1])


def test_the_model_s_order_is_that_of_the_states() -> None:
    assert visited(ModelOrder, space_of((2, 3, 4)), 0, 5) == list(range(24))


def test_times_of_states_that_were_not_asked_for_are_taken() -> None:
    for maker in OWN.values():
        searcher = maker(space_of((1, 3, 3)), 0)
        searcher.tell(4, 0.5)
        collected: list[int] = []
        while states := searcher.ask(2):
            for state in states:
                searcher.tell(state, 1.0)
            collected += states
        assert sorted(collected) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_the_network_learns_which_move_is_good() -> None:
    searcher = NA2C(space_of((1, 2, 2)), 0)
    for state, seconds in ((0, 1.0), (1, 10.0), (2, 0.5)):
        searcher.tell(state, seconds)
    good, bad = (int(np.flatnonzero(searcher.space.moves[0] == end)[0]) for end in (2, 1))
    for _ in range(150):
        searcher.learn(*np.array([(0, good, 2), (0, bad, 1)]).T)
    assert searcher.odds(np.array([0]))[0][good] > 0.6


@pytest.mark.parametrize("module", [xgboost_search, optuna_search])
def test_searchers_of_other_packages_name_their_extra(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *others: str) -> None:
        raise OptionError(f"{name} {others}")

    monkeypatch.setattr(module, "package", missing)
    name = module.__name__.rpartition(".")[2].removesuffix("_search")
    with pytest.raises(OptionError, match=f"{name}.*'tune'"):
        SEARCHERS[name](space_of((1, 2, 2)), 0)
