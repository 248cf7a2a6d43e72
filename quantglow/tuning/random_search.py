"""Searchers that learn nothing: random order, and simulated annealing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantglow.tuning.searchers import ModelOrder, Searcher, Space

HOT, COLD = 0.3, 0.01
"""First and last temperature of annealing, as a share of the time of the current state."""
COOLING = 200
"""States after which annealing is cold."""
STRAY = 0.05
"""Probability of a random state instead of a neighbour."""
MOST_STEPS = 500
"""Steps of a walk among known states before any new one is taken."""


class RandomSearch(ModelOrder):
    """States in random order."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        self.order = iter(self.rng.permutation(len(space)).tolist())


class Annealing(Searcher):
    """One chain of simulated annealing; known states cost nothing, and are walked through."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        self.current = start

    def proposals(self) -> Iterator[int]:
        """Neighbours of the current state, which moves on among known ones."""
        if self.current not in self.asked:
            yield self.current
            return
        for _ in range(MOST_STEPS):
            near = self.space.neighbors(self.current)
            if not near or self.rng.random() < STRAY:
                yield self.random_state()
                continue
            state = near[int(self.rng.integers(len(near)))]
            if state in self.seconds:
                self._consider(state)
            yield state
        while True:
            yield self.random_state()

    def tell(self, state: int, seconds: float) -> None:
        super().tell(state, seconds)
        self._consider(state)

    def _consider(self, state: int) -> None:
        """Move to a state if it is faster, or with a probability that falls with its time."""
        now, before = self.seconds[state], self.seconds.get(self.current, math.inf)
        if now < before:
            self.current = state
        elif now < math.inf:
            share = min(1.0, len(self.seconds) / COOLING)
            heat = HOT * (COLD / HOT) ** share
            if self.rng.random() < math.exp(-(now / before - 1) / heat):
                self.current = state
