"""N-A2C of Zhang, Cheng, Zang and Park 2019 (arXiv:1909.10616): actor and critic in NumPy.

An agent walks from the best state, with probability ``EPSILON`` at random, else by its policy; new
states are collected until a batch is full, then measured.  The reward of a state is the time of the
first state over its own; the critic learns rewards, the policy the logarithm of a move's
probability times its advantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from quantglow.support.arrays import Array
from quantglow.tuning.searchers import NOWHERE, Searcher, Space

FIRST_STEPS, MOST_STEPS = 3, 12
"""Steps of a walk at first, and after many walks without a new state."""
EMPTY_WALKS = 30
"""Walks without a new state after which they become longer."""
BATCH = 6
EPSILON = 0.1
HIDDEN = 128
RATE, DECAY = 1e-3, (0.9, 0.999)
"""Step of Adam, and decay of its moments."""


class NA2C(Searcher):
    """The searcher; benchmarks replace ``action`` and ``gradient`` as controls.

    A hidden layer is shared; its outputs are the logits of the actions and the value of a state.
    """

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        self.features, self.legal = space.features, space.moves != NOWHERE
        inputs, actions = self.features.shape[1], self.legal.shape[1]
        sizes = (inputs, HIDDEN), (HIDDEN, actions), (HIDDEN, 1)
        layer, *heads = (self.rng.standard_normal(size) / math.sqrt(size[0]) for size in sizes)
        self.weights = [layer, np.zeros(HIDDEN), 0.1 * np.hstack(heads), np.zeros(actions + 1)]
        self.means, self.squares = ([np.zeros_like(w) for w in self.weights] for _ in DECAY)
        self.updates, self.steps = 0, FIRST_STEPS
        self.moves: list[tuple[int, int, int]] = []  # a state, an action, and the state at its end
        self.batch: list[int] = []

    def ask(self, count: int) -> list[int]:
        if not self.pending:
            self.batch = self.draw(self.proposals(), BATCH)
        return [self.batch.pop(0) for _ in self.batch[:count]]

    def proposals(self) -> Iterator[int]:
        """States of walks from the best state."""
        if self.start not in self.asked:
            yield self.start
            return
        empty = 0
        while True:
            state, before = self.best, len(self.asked)
            for _ in range(self.steps):
                if not len(legal := np.flatnonzero(self.legal[state])):
                    break
                action = self.action(state, legal)
                self.moves.append((state, action, int(self.space.moves[state, action])))
                yield (state := self.moves[-1][-1])
            empty = 0 if len(self.asked) > before else empty + 1
            if empty and empty % EMPTY_WALKS == 0:
                if self.steps == MOST_STEPS:
                    yield self.random_state()
                self.steps = min(self.steps + 1, MOST_STEPS)

    def action(self, state: int, legal: Array) -> int:
        """One of the legal moves of a state."""
        if self.rng.random() < EPSILON:
            return int(self.rng.choice(legal))
        return int(self.rng.choice(legal, p=self.odds(np.array([state]))[0, legal]))

    def outputs(self, states: Array) -> tuple[Array, Array]:
        """Hidden values [n, h], and logits [n, a] with the values of states beside them."""
        hidden = np.tanh(self.features[states] @ self.weights[0] + self.weights[1])
        return hidden, hidden @ self.weights[2] + self.weights[3]

    def odds(self, states: Array) -> Array:
        """Probabilities of the actions, [n, a]."""
        masked = np.where(self.legal[states], self.outputs(states)[1][:, :-1], -np.inf)
        odds = np.exp(masked - masked.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def tell(self, state: int, seconds: float) -> None:
        super().tell(state, seconds)
        if not self.pending and self.moves:
            self.learn(*np.array(self.moves).T)
            self.moves = []

    def learn(self, states: Array, actions: Array, ends: Array) -> None:
        """One step of Adam on moves to states whose times are known."""
        first = self.seconds.get(self.start, math.inf)
        scale = first if first < math.inf else min(self.seconds.values())
        rewards = np.array([scale / self.seconds[end] for end in ends.tolist()])
        hidden, outputs = self.outputs(states)
        errors = outputs[:, -1] - rewards
        # The critic's loss is (V - r)^2, and 2 (V - r) its slope.
        heads = np.column_stack([self.gradient(states, actions, -errors), 2 * errors]) / len(ends)
        back = (heads @ self.weights[2].T) * (1 - hidden**2)
        gradients = [self.features[states].T @ back, back.sum(axis=0)]
        gradients += [hidden.T @ heads, heads.sum(axis=0)]
        self.updates += 1
        for n, gradient in enumerate(gradients):
            self.means[n] = DECAY[0] * self.means[n] + (1 - DECAY[0]) * gradient
            self.squares[n] = DECAY[1] * self.squares[n] + (1 - DECAY[1]) * gradient**2
            mean = self.means[n] / (1 - DECAY[0] ** self.updates)
            square = self.squares[n] / (1 - DECAY[1] ** self.updates)
            self.weights[n] = self.weights[n] - RATE * mean / (np.sqrt(square) + 1e-8)

    def gradient(self, states: Array, actions: Array, advantages: Array) -> Array:
        """d(-log p(a) A)/d(logits) = A (p - onehot(a)) of each move, [n, a]."""
        odds = self.odds(states)
        odds[np.arange(len(odds)), actions] -= 1.0
        return np.asarray(advantages[:, None] * odds)
