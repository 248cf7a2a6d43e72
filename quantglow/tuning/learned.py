"""Searchers that learn from measurements: N-A2C, XGBoost and Optuna.

N-A2C (Zhang, Cheng, Zang and Park 2019, arXiv:1909.10616): an actor and a critic choose the moves
of short walks.  An agent walks from the best state, with probability ``EPSILON`` at random, else by
its policy; new states are collected until a batch is full, then measured.  The reward of a state is
the time of the first state over its own; the critic learns rewards, the policy the logarithm of a
move's probability times its advantage.  ``uniform`` and ``reversed`` policies are controls: what
they reach is not the work of the network.

XGBoost and Optuna are optional packages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.extras import package
from quantglow.tuning.searchers import NOWHERE, Known, Space

Policy = Literal["learned", "uniform", "reversed"]

STEPS = 3
"""Steps of a walk at first."""
MOST_STEPS = 12
"""Steps of a walk after many walks that found nothing new."""
BATCH = 6
EPSILON = 0.1
HIDDEN = 128
RATE = 1e-3
EMPTY_WALKS = 30
"""Walks without a new state after which they become longer."""
DECAY = (0.9, 0.999)
"""Decay of the moments of Adam."""

FIRST = 8
"""Random states that are measured before a model is learned; the default is one of them."""
SHARE = 0.2
"""Growth of what is known after which the model is learned anew, as in TVM."""
STRAY = 0.05
"""Share of random states of ``XGBoostSearch``."""
SETTINGS = {"max_depth": 6, "eta": 0.2, "verbosity": 0, "nthread": 1}
ROUNDS = 40
MOST_TRIES = 200
"""Proposals of Optuna among which none is a new state before a random one is taken."""
INFEASIBLE = 1e3
"""Logarithm of the time of a state that failed or does not exist."""


@dataclass
class Move:
    """One step of a walk: from a state, by an action, to another state."""

    state: int
    action: int
    end: int


class Network:
    """A shared hidden layer, logits of the actions and the value of a state."""

    def __init__(self, inputs: int, actions: int, rng: np.random.Generator) -> None:
        def layer(rows: int, columns: int) -> Array:
            return rng.standard_normal((rows, columns)) / math.sqrt(rows)

        self.weights = [layer(inputs, HIDDEN), np.zeros(HIDDEN)]
        self.weights += [0.1 * layer(HIDDEN, actions), np.zeros(actions)]
        self.weights += [0.1 * layer(HIDDEN, 1), np.zeros(1)]
        self._means = [np.zeros_like(w) for w in self.weights]
        self._squares = [np.zeros_like(w) for w in self.weights]
        self._count = 0

    def forward(self, x: Array) -> tuple[Array, Array, Array]:
        """Hidden values [n, h], logits [n, a] and values [n] of states [n, d]."""
        w = self.weights
        hidden = np.tanh(x @ w[0] + w[1])
        return hidden, hidden @ w[2] + w[3], (hidden @ w[4] + w[5])[:, 0]

    def step(self, x: Array, logits: Array, values: Array) -> None:
        """One step of Adam, given the gradients of the loss with respect to the outputs."""
        hidden, _, _ = self.forward(x)
        w = self.weights
        back = (logits @ w[2].T + values[:, None] @ w[4].T) * (1 - hidden**2)
        gradients = [x.T @ back, back.sum(axis=0)]
        gradients += [hidden.T @ logits, logits.sum(axis=0)]
        gradients += [hidden.T @ values[:, None], values.sum(keepdims=True)]
        self._count += 1
        for at, gradient in enumerate(gradients):
            self._means[at] = DECAY[0] * self._means[at] + (1 - DECAY[0]) * gradient
            self._squares[at] = DECAY[1] * self._squares[at] + (1 - DECAY[1]) * gradient**2
            mean = self._means[at] / (1 - DECAY[0] ** self._count)
            square = self._squares[at] / (1 - DECAY[1] ** self._count)
            w[at] = w[at] - RATE * mean / (np.sqrt(square) + 1e-8)


class NA2C:
    """The searcher."""

    def __init__(
        self, space: Space, seed: int = 0, start: int = 0, policy: Policy = "learned"
    ) -> None:
        self.known = Known(space, np.random.default_rng(seed))
        self.policy = policy
        self.start = start
        self.features = space.features
        self.legal = space.moves != NOWHERE
        self.network = Network(self.features.shape[1], space.moves.shape[1], self.known.rng)
        self.steps = STEPS
        self.ladders: dict[int, Array] = {}
        """Sums of the probabilities of a state's legal moves, until the network learns."""
        self.moves: list[Move] = []
        self.batch: list[int] = []
        self.waiting: set[int] = set()

    def ask(self, count: int) -> list[int]:
        if self.start not in self.known.asked:
            return self.known.taken(iter([self.start]), 1)
        if not self.batch and not self.waiting:
            self.batch = self.known.taken(self._walked(), BATCH)
        found, self.batch = self.batch[:count], self.batch[count:]
        self.waiting |= set(found)
        return found

    def _walked(self) -> Iterator[int]:
        """States of walks from the best state."""
        empty = 0
        while True:
            state, before = self.known.best, len(self.known.asked)
            for _ in range(self.steps):
                action = self._action(state)
                if action is None:
                    break
                end = int(self.known.space.moves[state, action])
                self.moves.append(Move(state, action, end))
                yield end
                state = end
            empty = 0 if len(self.known.asked) > before else empty + 1
            if empty == EMPTY_WALKS:
                empty = 0
                if self.steps == MOST_STEPS:
                    yield self.known.new()
                self.steps = min(self.steps + 1, MOST_STEPS)

    def _action(self, state: int) -> int | None:
        """A legal move; None where there is none."""
        legal = np.flatnonzero(self.legal[state])
        if not len(legal):
            return None
        if self.policy == "uniform" or self.known.rng.random() < EPSILON:
            return int(legal[self.known.rng.integers(len(legal))])
        if state not in self.ladders:
            self.ladders[state] = np.cumsum(self.odds([state])[0][legal])
        place = np.searchsorted(self.ladders[state], self.known.rng.random())
        return int(legal[min(int(place), len(legal) - 1)])

    def odds(self, states: list[int]) -> Array:
        """Probabilities of the actions, [n, a]."""
        _, logits, _ = self.network.forward(self.features[states])
        masked = np.where(self.legal[states], logits, -np.inf)
        odds = np.exp(masked - masked.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)
        self.waiting.discard(state)
        if not self.batch and not self.waiting and self.moves:
            moves, self.moves = self.moves, []
            self.learn([move for move in moves if move.end in self.known.seconds])

    def learn(self, moves: Sequence[Move]) -> None:
        """One step of the network on moves to states whose times are known."""
        if self.policy == "uniform" or not moves:
            return
        self.ladders = {}
        states = [move.state for move in moves]
        first = self.known.seconds.get(self.start, math.inf)
        scale = first if first < math.inf else min(self.known.seconds.values())
        rewards = np.array([scale / self.known.seconds[move.end] for move in moves])
        odds = self.odds(states)
        _, _, values = self.network.forward(self.features[states])
        advantages = rewards - values
        taken = np.zeros_like(odds)
        taken[np.arange(len(moves)), [move.action for move in moves]] = 1.0
        sign = -1.0 if self.policy == "reversed" else 1.0
        # d(-log p(a) A)/d(logits) = A (p - onehot(a)), and d((V - r)^2)/dV = 2 (V - r).
        logits = sign * advantages[:, None] * (odds - taken) / len(moves)
        self.network.step(self.features[states], logits, 2 * (values - rewards) / len(moves))


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
