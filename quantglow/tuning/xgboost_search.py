"""Search by gradient-boosted trees, which predict times from coordinates and modelled cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.extras import package
from quantglow.tuning.searchers import Searcher, Space

FIRST = 8
"""Random states that are measured before a model is learned; the default is one of them."""
SHARE = 0.2
"""Growth of what is known after which the model is learned anew, as in TVM."""
STRAY = 0.05
"""Share of random states."""
SETTINGS = {"max_depth": 6, "eta": 0.2, "verbosity": 0, "nthread": 1}
ROUNDS = 40


class XGBoostSearch(Searcher):
    """States with the least time that gradient-boosted trees predict; benchmarks replace
    ``features`` and ``fit``."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        self.xgboost = package("xgboost", "tune", "searcher='xgboost'")
        self.settings = {**SETTINGS, "objective": "reg:squarederror", "seed": seed}
        self.table = self.features()
        self.learned = 0
        self.order: Array = np.arange(len(space))

    def features(self) -> Array:
        """Coordinates of all states, and the logarithms of their modelled cycles, [n, d + 1]."""
        cycles = np.log(np.maximum(self.space.modeled, 1.0))
        return np.column_stack([self.space.features, cycles])

    def fit(self, table: Array, logs: Array) -> Any:
        """The model of states with these features and logarithms of times: more is faster."""
        data = self.xgboost.DMatrix(table, label=-logs)
        return self.xgboost.train(self.settings, data, ROUNDS)

    def proposals(self) -> Iterator[int]:
        if not self.asked:
            yield self.start
        while len(self.asked) < FIRST or self.rng.random() < STRAY:
            yield self.random_state()
        if len(self.seconds) > self.learned * (1 + SHARE):
            self._learn()
        yield from self.order.tolist()

    def _learn(self) -> None:
        """Put all states into the order of their predicted times."""
        states = [state for state, seconds in self.seconds.items() if seconds < math.inf]
        self.learned = len(self.seconds)
        if states:
            logs = np.log([self.seconds[state] for state in states])
            model = self.fit(self.table[states], logs)
            speed = model.predict(self.xgboost.DMatrix(self.table))
            self.order = np.argsort(-speed, kind="stable")
