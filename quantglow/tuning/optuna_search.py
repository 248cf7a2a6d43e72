"""Search by Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from quantglow.support.extras import package
from quantglow.tuning.searchers import Searcher, Space

MOST_TRIES = 200
"""Proposals of Optuna among which none is a new state before a random one is taken."""
INFEASIBLE = 1e3
"""Logarithm of the time of a state that failed or does not exist."""


class OptunaSearch(Searcher):
    """Optuna's tree-structured Parzen estimator on the coordinates of a space."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        optuna = package("optuna", "tune", "searcher='optuna'")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.most = space.coordinates.max(axis=0).tolist()
        self.states = {tuple(c): n for n, c in enumerate(space.coordinates.tolist())}
        self.trials: dict[int, Any] = {}
        first = space.coordinates[start].tolist()
        self.study.enqueue_trial({f"c{axis}": value for axis, value in enumerate(first)})

    def proposals(self) -> Iterator[int]:
        for _ in range(MOST_TRIES):
            trial = self.study.ask()
            axes = enumerate(self.most)
            state = self.states.get(tuple(trial.suggest_int(f"c{n}", 0, most) for n, most in axes))
            if state is None:
                self.study.tell(trial, INFEASIBLE)
            elif state in self.asked:
                self._value(trial, self.seconds.get(state, math.inf))
            else:
                self.trials[state] = trial
                yield state
        yield self.random_state()

    def _value(self, trial: Any, seconds: float) -> None:
        """Tell Optuna the logarithm of a time."""
        self.study.tell(trial, math.log(seconds) if 0 < seconds < math.inf else INFEASIBLE)

    def tell(self, state: int, seconds: float) -> None:
        super().tell(state, seconds)
        if (trial := self.trials.pop(state, None)) is not None:
            self._value(trial, seconds)
