"""Search spaces of tasks, and what all searchers for their fastest states share.

A move changes one coordinate by one step: another form, a tile of more or fewer pixels or vectors,
the other order, more or fewer steps, an earlier or later prefetch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import PREFETCHES
from quantglow.codegen.llvm.kernels.tunable import NAMES
from quantglow.support.arrays import Array

FORM = 0
"""The coordinate whose moves lead to the first state of another form."""
NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Space:
    """States 0 to n - 1 of a task, the default first, then in the order of the cost model.

    ``coordinates``: int [n, d]; ``moves``: the state at which each of 2 d moves ends, or
    ``NOWHERE``, int [n, 2 d]; ``modeled``: cycles of the cost model, [n].
    """

    coordinates: Array
    moves: Array
    modeled: Array

    @staticmethod
    def of(choices: Sequence[KernelChoice], modeled: Sequence[float]) -> Space:
        """The space of choices in the order of the cost model."""
        return Space.at(_choice_coordinates(choices), np.asarray(modeled, np.float64))

    @staticmethod
    def at(coordinates: Array, modeled: Array) -> Space:
        """The space of states at these coordinates."""
        states = {tuple(each): number for number, each in enumerate(coordinates.tolist())}
        first: dict[int, int] = {}
        for number, form in enumerate(coordinates[:, FORM].tolist()):
            first.setdefault(form, number)
        moves = np.full((len(coordinates), 2 * coordinates.shape[1]), NOWHERE, np.int64)
        for number, each in enumerate(coordinates.tolist()):
            for axis in range(len(each)):
                for side, step in enumerate((-1, 1)):
                    to = (*each[:axis], each[axis] + step, *each[axis + 1 :])
                    end = first.get(to[FORM], NOWHERE) if axis == FORM else states.get(to, NOWHERE)
                    moves[number, 2 * axis + side] = end
        return Space(coordinates, moves, modeled)

    def __len__(self) -> int:
        return len(self.coordinates)

    def neighbors(self, state: int) -> list[int]:
        """The states one move away."""
        return [int(end) for end in self.moves[state] if end != NOWHERE]

    @property
    def features(self) -> Array:
        """Coordinates between -0.5 and 0.5, float [n, d]."""
        most = np.maximum(self.coordinates.max(axis=0), 1)
        return np.asarray(self.coordinates / most - 0.5)


def _choice_coordinates(choices: Sequence[KernelChoice]) -> Array:
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


class Searcher(ABC):
    """A search for the fastest state of a space, from a seed; ``start``: its first state.

    ``asked``: states that were handed out, or whose time was told; ``seconds``: times that were
    told, infinite for states that failed.  A searcher is a class with ``proposals``.
    """

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        self.space = space
        self.start = start
        self.rng = np.random.default_rng(seed)
        self.asked: set[int] = set()
        self.seconds: dict[int, float] = {}

    @abstractmethod
    def proposals(self) -> Iterator[int]:
        """States to measure next, the best first; states that were asked for are passed over.  The
        end means that times must be told first, or that nothing is left to try."""

    def ask(self, count: int) -> list[int]:
        """At most so many new states to measure; none: there is nothing left to try."""
        return self.draw(self.proposals(), count)

    def tell(self, state: int, seconds: float) -> None:
        """The time of a state, infinite where it failed; it may be one that was not asked for."""
        self.asked.add(state)
        self.seconds[state] = seconds

    def draw(self, states: Iterator[int], count: int) -> list[int]:
        """The next new states, noted as asked for."""
        new: list[int] = []
        while len(new) < count and len(self.asked) < len(self.space):
            state = next(states, None)
            if state is None:
                break
            if state not in self.asked:
                self.asked.add(state)
                new.append(state)
        return new

    @property
    def best(self) -> int:
        """The fastest state so far; 0 before there is any."""
        return min(self.seconds, key=self.seconds.__getitem__, default=0)

    @property
    def pending(self) -> set[int]:
        """States that were asked for, and whose times were not told."""
        return self.asked - self.seconds.keys()

    def random_state(self) -> int:
        """A random state that was not asked for."""
        state = int(self.rng.integers(len(self.space) - len(self.asked)))
        for asked in sorted(self.asked):
            if asked > state:
                break
            state += 1
        return state


Maker = Callable[[Space, int], Searcher]
"""A searcher of a space, from a seed."""


class ModelOrder(Searcher):
    """States in the order of the cost model."""

    def __init__(self, space: Space, seed: int = 0, start: int = 0) -> None:
        super().__init__(space, seed, start)
        self.order = iter(range(len(space)))

    def proposals(self) -> Iterator[int]:
        return self.order
