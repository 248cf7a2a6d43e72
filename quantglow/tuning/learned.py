"""Searchers of optional packages: XGBoost, a model learned from what was measured, and Optuna."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from quantglow.extras import package
from quantglow.foreign_types import Array
from quantglow.tuning.searchers import Known
from quantglow.tuning.space import Space

FIRST = 8
"""Random states that are measured before a model is learned; the default is one of them."""
SHARE = 0.2
"""Growth of what is known after which the model is learned anew, as in TVM."""
STRAY = 0.05
"""Share of random states."""
SETTINGS = {"max_depth": 6, "eta": 0.2, "verbosity": 0, "nthread": 1}
ROUNDS = 40
MOST_TRIES = 200
"""Proposals of Optuna among which none is a new state before a random one is taken."""
INFEASIBLE = 1e3
"""Logarithm of the time of a state that failed or does not exist."""


class XGBoostSearch:
    """States with the least time that gradient-boosted trees predict.

    ``modelled``: whether the cycles of the cost model are a feature; ``ranks``: whether the trees
    learn the order of states, not their times.
    """

    def __init__(
        self, space: Space, seed: int = 0, *, modelled: bool = True, ranks: bool = False
    ) -> None:
        self.trees = package("xgboost", "tune", "searcher='xgboost'")
        self.known = Known(space, np.random.default_rng(seed))
        columns = [space.features]
        if modelled:
            columns.append(np.log(np.maximum(space.modelled, 1.0))[:, None])
        self.features = np.concatenate(columns, axis=1)
        self.settings = {
            **SETTINGS,
            "objective": "rank:pairwise" if ranks else "reg:squarederror",
            "seed": seed,
        }
        self.ranks = ranks
        self.learned = 0
        self.order: Array = np.arange(len(space))

    def ask(self, count: int) -> list[int]:
        return self.known.taken(self._next(), count)

    def _next(self) -> Iterator[int]:
        if not self.known.asked:
            yield 0
        while len(self.known.asked) < FIRST or self.known.rng.random() < STRAY:
            yield self.known.new()
        if len(self.known.seconds) > self.learned * (1 + SHARE):
            self._learn()
        yield from map(int, self.order)

    def _learn(self) -> None:
        states = [s for s, seconds in self.known.seconds.items() if seconds < math.inf]
        self.learned = len(self.known.seconds)
        if not states:
            return
        logs = np.log([self.known.seconds[state] for state in states])
        data = self.trees.DMatrix(self.features[states], label=-logs)
        if self.ranks:
            data = self.trees.DMatrix(
                self.features[states], label=len(logs) - 1 - np.argsort(np.argsort(logs))
            )
            data.set_group([len(states)])
        settings = {**self.settings, **({"lambdarank_pair_method": "mean"} if self.ranks else {})}
        model = self.trees.train(settings, data, ROUNDS)
        predicted = model.predict(self.trees.DMatrix(self.features))
        self.order = np.argsort(-predicted, kind="stable")

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator on the coordinates of a space."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        optuna = package("optuna", "tune", "searcher='optuna'")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.known = Known(space, np.random.default_rng(seed))
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.most = space.coordinates.max(axis=0).tolist()
        self.places = {tuple(c): n for n, c in enumerate(space.coordinates.tolist())}
        self.trials: dict[int, Any] = {}
        self.study.enqueue_trial(self._names(space.coordinates[0].tolist()))

    @staticmethod
    def _names(values: list[int]) -> dict[str, int]:
        return {f"c{axis}": value for axis, value in enumerate(values)}

    def ask(self, count: int) -> list[int]:
        return self.known.taken(self._next(), count)

    def _next(self) -> Iterator[int]:
        for _ in range(MOST_TRIES):
            trial = self.study.ask()
            found = [
                trial.suggest_int(name, 0, most) for name, most in self._names(self.most).items()
            ]
            state = self.places.get(tuple(found))
            if state is None:
                self.study.tell(trial, INFEASIBLE)
            elif state in self.known.asked:
                self.study.tell(trial, self._value(self.known.seconds.get(state, math.inf)))
            else:
                self.trials[state] = trial
                yield state
        yield self.known.new()

    @staticmethod
    def _value(seconds: float) -> float:
        return math.log(seconds) if 0 < seconds < math.inf else INFEASIBLE

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)
        if (trial := self.trials.pop(state, None)) is not None:
            self.study.tell(trial, self._value(seconds))
