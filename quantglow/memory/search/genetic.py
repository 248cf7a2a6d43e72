"""Biased random-key genetic algorithm (Gonçalves and Resende 2011, doi:10.1007/s10732-010-9143-1).

A candidate is a list of keys in [0, 1), whose meaning belongs to the caller.  In each generation
the best candidates stay, a child takes each key from one of these more often than from another one,
and new ones are drawn.  Work is bounded by the number of evaluations, never by time: equal
arguments give equal results on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Keys = Sequence[float]

BIAS = 0.7
"""Probability of a key to come from the better parent."""


@dataclass(frozen=True)
class Best:
    """The best candidate and its cost."""

    cost: int
    keys: Keys


@dataclass(frozen=True)
class Genetic:
    """Sizes of a generation, and the seed of what is drawn."""

    population: int = 24
    elite: int = 5
    mutants: int = 4
    seed: int = 0

    def search(
        self,
        length: int,
        cost: Callable[[Keys], int],
        starts: Sequence[Keys],
        evaluations: int,
        goal: int,
    ) -> Best:
        """The candidate of the smallest cost, of ``starts`` and so many others.

        ``goal``: a cost below which no candidate gets; one of it ends the search.
        """
        drawn = Random(self.seed)
        found = sorted((Best(cost(keys), keys) for keys in starts), key=_cost)
        missing = max(self.population - len(found), 0)
        new = [_drawn(drawn, length) for _ in range(missing)]
        while found[0].cost > goal and evaluations > 0:
            for keys in new[:evaluations]:
                found.append(Best(cost(keys), keys))
                if found[-1].cost <= goal:
                    return found[-1]
            evaluations -= len(new)
            found = sorted(found, key=_cost)[: self.population]
            new = self._children(drawn, found, length)
            del found[self.elite :]
        return found[0]

    def _children(self, drawn: Random, found: Sequence[Best], length: int) -> list[Keys]:
        elite, others = found[: self.elite], found[self.elite :] or found
        pairs = [
            (drawn.choice(elite).keys, drawn.choice(others).keys)
            for _ in range(self.population - self.elite - self.mutants)
        ]
        children: list[Keys] = [_child(drawn, better, worse) for better, worse in pairs]
        return children + [_drawn(drawn, length) for _ in range(self.mutants)]


def keys_of(order: Sequence[int]) -> Keys:
    """The keys whose sorted order is an order of all numbers below its length."""
    keys = [0.0] * len(order)
    for position, number in enumerate(order):
        keys[number] = (position + 0.5) / len(order)
    return keys


def _cost(candidate: Best) -> int:
    return candidate.cost


def _drawn(drawn: Random, length: int) -> Keys:
    return [drawn.random() for _ in range(length)]


def _child(drawn: Random, better: Keys, worse: Keys) -> Keys:
    pairs = zip(better, worse, strict=True)
    return [one if drawn.random() < BIAS else other for one, other in pairs]
