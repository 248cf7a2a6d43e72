"""Search spaces of tasks, and searchers for their fastest states.

The choices of a task are states with coordinates.  A move changes one coordinate by one step:
another form, a tile of more or fewer pixels or vectors, the other order, more or fewer steps, an
earlier or later prefetch.

A searcher is asked for states to measure, and told what they took.  G-BFS and N-A2C (``learned``)
are those of Zhang, Cheng, Zang and Park 2019 (arXiv:1909.10616), on the moves of ``Space``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from quantglow.codegen.llvm.isa.costs import Choice
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import PREFETCHES
from quantglow.codegen.llvm.kernels.tunable import NAMES
from quantglow.support.arrays import Array

FORM = 0
"""The coordinate whose moves lead to the first state of another form."""
NOWHERE = -1

RHO = 5
"""Neighbors of a state that G-BFS measures, as in the paper."""
HOT, COLD = 0.3, 0.01
"""First and last temperature of annealing, as a share of the time of the current state."""
COOLING = 200
"""States after which annealing is cold."""
STRAY = 0.05
"""Probability of a random state instead of a neighbor."""
MOST_STEPS = 500
"""Steps of a walk among known states before any new one is taken."""


@dataclass(frozen=True, eq=False)
class Space:
    """States 0 to n - 1 of a task, the default first, then in the order of the cost model.

    ``coordinates``: int [n, d]; ``moves``: the state at which each of 2 d moves ends, or
    ``NOWHERE``, int [n, 2 d]; ``modelled``: cycles of the cost model, [n].
    """

    coordinates: Array
    moves: Array
    modelled: Array

    @staticmethod
    def of(choices: Sequence[Choice], modelled: Sequence[float]) -> Space:
        """The space of choices in the order of the cost model."""
        return Space.at(coordinates_of(choices), np.asarray(modelled, np.float64))

    @staticmethod
    def at(coordinates: Array, modelled: Array) -> Space:
        """The space of states at these coordinates."""
        place = {tuple(each): number for number, each in enumerate(coordinates.tolist())}
        first: dict[int, int] = {}
        for number, form in enumerate(coordinates[:, FORM].tolist()):
            first.setdefault(form, number)
        moves = np.full((len(coordinates), 2 * coordinates.shape[1]), NOWHERE, np.int64)
        for number, each in enumerate(coordinates.tolist()):
            for axis in range(len(each)):
                for side, step in enumerate((-1, 1)):
                    to = (*each[:axis], each[axis] + step, *each[axis + 1 :])
                    end = first.get(to[FORM], NOWHERE) if axis == FORM else place.get(to, NOWHERE)
                    moves[number, 2 * axis + side] = end
        return Space(coordinates, moves, modelled)

    def __len__(self) -> int:
        return len(self.coordinates)

    def neighbours(self, state: int) -> list[int]:
        """The states one move away."""
        return [int(end) for end in self.moves[state] if end != NOWHERE]

    @property
    def features(self) -> Array:
        """Coordinates between -0.5 and 0.5, float [n, d]."""
        most = np.maximum(self.coordinates.max(axis=0), 1)
        return np.asarray(self.coordinates / most - 0.5)


def coordinates_of(choices: Sequence[Choice]) -> Array:
    """For each choice the ranks of its form, pixels, vectors, order, unrolling and prefetch."""
    keys = [
        (
            NAMES.index(choice.form),
            (0, 0) if choice.tile is None else (choice.tile[0] * choice.tile[1], choice.tile[0]),
            0 if choice.tile is None else choice.tile[2],
            int(choice.panels_outer or False),
            choice.unroll or 0,
            PREFETCHES.index(choice.prefetch or PREFETCHES[0]),
        )
        for choice in choices
    ]
    ranks = []
    for column in zip(*keys, strict=True):
        rank = {value: number for number, value in enumerate(sorted(set(column)))}
        ranks.append([rank[value] for value in column])
    return np.array(ranks, np.int64).T


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
    """Greedy best-first search: ``rho`` random neighbors of the fastest state not yet expanded.

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
