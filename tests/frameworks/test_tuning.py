"""Searchers of XGBoost and Optuna."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from quantglow.tuning.searchers import Space
from quantglow.tuning.tuner import SEARCHERS

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("name", ["xgboost", "optuna"])
def test_every_state_is_asked_for_once(name: str) -> None:
    pytest.importorskip(name)
    space = Space.at(np.array(list(product(range(2), range(4), range(4)))), np.ones(32))
    searcher, actual = SEARCHERS[name](space, 1), list[int]()
    while states := searcher.ask(4):
        for state in states:
            searcher.tell(state, float("inf") if state == 7 else 1.0 + state % 5)
        actual += states
    assert sorted(actual) == list(range(32))
