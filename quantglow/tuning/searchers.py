"""Search for the fastest state of a space: ask for states to measure, tell what they took.

G-BFS and N-A2C (``na2c``) are those of Zhang, Cheng, Zang and Park 2019 (arXiv:1909.10616), on the
moves of ``Space``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from quantglow.tuning.space import Space

RHO = 5
"""Neighbours of a state that G-BFS measures, as in the paper."""
HOT, COLD = 0.3, 0.01
"""First and last temperature of annealing, as a share of the time of the current state."""
COOLING = 200
"""States after which annealing is cold."""
STRAY = 0.05
"""Probability of a random state instead of a neighbour."""
MOST_STEPS = 500
"""Steps of a walk among known states before any new one is taken."""


class Searcher(Protocol):
    """A search.  States are asked for once; ``tell`` may be called for states that were not."""

    def ask(self, count: int) -> list[int]:
        """At most so many new states to measure; none: there is nothing left to try."""

    def tell(self, state: int, seconds: float) -> None:
        """The time of a state; infinite where it failed."""


@dataclass
class Known:
    """States that were asked for, and times that were told."""

    space: Space
    rng: np.random.Generator
    asked: set[int] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """The fastest state so far; 0 before there is any."""
        return min(self.seconds, key=self.seconds.__getitem__, default=0)

    def told(self, state: int, seconds: float) -> None:
        """Note the time of a state."""
        self.asked.add(state)
        self.seconds[state] = seconds

    def taken(self, states: Iterator[int], count: int) -> list[int]:
        """The next new states, noted as asked for."""
        found: list[int] = []
        while len(found) < count and len(self.asked) < len(self.space):
            state = next(states, None)
            if state is None:
                break
            if state not in self.asked:
                self.asked.add(state)
                found.append(state)
        return found

    def new(self) -> int:
        """A random state that was not asked for."""
        state = int(self.rng.integers(len(self.space) - len(self.asked)))
        for asked in sorted(self.asked):
            if asked > state:
                break
            state += 1
        return state


class ModelOrder:
    """States in the order of the cost model."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self.known = Known(space, np.random.default_rng(seed))
        self.order = iter(range(len(space)))

    def ask(self, count: int) -> list[int]:
        return self.known.taken(self.order, count)

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)


class RandomSearch(ModelOrder):
    """States in random order."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space, seed)
        self.order = iter(self.known.rng.permutation(len(space)).tolist())


class Annealing:
    """One chain of simulated annealing; known states cost nothing, and are walked through."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        self.known = Known(space, np.random.default_rng(seed))
        self.current = start

    def ask(self, count: int) -> list[int]:
        if self.current not in self.known.asked:
            return self.known.taken(iter([self.current]), 1)
        return self.known.taken(self._proposals(), count)

    def _proposals(self) -> Iterator[int]:
        """Neighbours of the current state, which moves on among known ones."""
        known, rng = self.known, self.known.rng
        for _ in range(MOST_STEPS):
            near = known.space.neighbours(self.current)
            if not near or rng.random() < STRAY:
                yield known.new()
                continue
            state = near[int(rng.integers(len(near)))]
            if state in known.seconds:
                self._consider(state)
            yield state
        while True:
            yield known.new()

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)
        self._consider(state)

    def _consider(self, state: int) -> None:
        """Move to a state if it is faster, or with a probability that falls with its time."""
        seconds = self.known.seconds
        now, before = seconds[state], seconds.get(self.current, math.inf)
        if now < before:
            self.current = state
        elif now < math.inf:
            share = min(1.0, len(seconds) / COOLING)
            heat = HOT * (COLD / HOT) ** share
            if self.known.rng.random() < math.exp(-(now / before - 1) / heat):
                self.current = state


class GBFS:
    """Greedy best-first search: ``rho`` random neighbours of the fastest state not yet expanded.

    Where the queue is empty, it goes on at a random state: the paper's would end.
    """

    def __init__(self, space: Space, seed: int = 0, start: int = 0, rho: int = RHO) -> None:
        self.known = Known(space, np.random.default_rng(seed))
        self.rho = rho
        self.queue: list[tuple[float, int]] = []
        self.waiting = [start]
        self.open = 0

    def ask(self, count: int) -> list[int]:
        found = self.known.taken(self._next(), count)
        self.open += len(found)
        return found

    def _next(self) -> Iterator[int]:
        while True:
            while self.waiting:
                yield self.waiting.pop()
            if self.queue:
                _, state = heapq.heappop(self.queue)
                near = [s for s in self.known.space.neighbours(state) if s not in self.known.asked]
                self.waiting = self.known.rng.permutation(near).tolist()[: self.rho]
            elif self.open:
                return  # states whose times are not told yet will be expanded first
            else:
                self.waiting = [self.known.new()]

    def tell(self, state: int, seconds: float) -> None:
        self.known.told(state, seconds)
        self.open = max(0, self.open - 1)
        if seconds < math.inf:
            heapq.heappush(self.queue, (seconds, state))


Maker = Callable[[Space, int], Searcher]
"""A searcher of a space, from a seed."""
