"""The choices of a task as a space: states with coordinates, and moves from one to another.

A move changes one coordinate by one step: another form, a tile of more or fewer pixels or vectors,
the other order, more or fewer steps, an earlier or later prefetch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.kernels.conv.implicit_gemm import PREFETCHES
from quantglow.backends.llvm.kernels.tunable import NAMES
from quantglow.foreign_types import Array

FORM = 0
"""The coordinate whose moves lead to the first state of another form."""
NOWHERE = -1


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
