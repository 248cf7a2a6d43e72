"""Combinations of parameters: a few run by default, more with slow tests, the rest on demand."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest

Chosen = tuple[int, ...]
"""A combination: the position of its value on each axis."""
Place = tuple[int, int]
"""An axis and a position on it."""


def mark_slow(values: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """All values; all are slow but the quick ones."""
    return [pytest.param(v, marks=() if v in quick else pytest.mark.slow) for v in values]


def covering(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of the axes.

    Quick are a few that have each value at least once, and slow are those that complete the pairs:
    each value of an axis meets each value of every other axis.  The rest is exhaustive, too: what
    goes wrong depends on one value or on two of them, rarely on three.
    """
    sizes = [len(axis) for axis in axes]
    quick = [tuple(k % size for size in sizes) for k in range(max(sizes))]
    paired = set(pairing(sizes, quick))

    def marks(chosen: Chosen) -> Sequence[pytest.MarkDecorator]:
        if chosen in quick:
            return ()
        return (
            (pytest.mark.slow,) if chosen in paired else (pytest.mark.slow, pytest.mark.exhaustive)
        )

    return [
        pytest.param(*(axis[i] for axis, i in zip(axes, chosen, strict=True)), marks=marks(chosen))
        for chosen in itertools.product(*map(range, sizes))
    ]


def pairing(sizes: Sequence[int], present: Iterable[Chosen] = ()) -> list[Chosen]:
    """Combinations that have, with those ``present``, each pair of positions of two axes."""
    places = [[(axis, position) for position in range(size)] for axis, size in enumerate(sizes)]
    of_two_axes = itertools.starmap(itertools.product, itertools.combinations(places, 2))
    missing = dict.fromkeys(itertools.chain.from_iterable(of_two_axes))
    for pair in itertools.chain.from_iterable(map(pairs_of, present)):
        missing.pop(pair, None)
    combinations = []
    while missing:
        combinations.append(completed(next(iter(missing)), sizes, missing))
        for pair in pairs_of(combinations[-1]):
            missing.pop(pair, None)
    return combinations


def pairs_of(chosen: Chosen) -> Iterable[tuple[Place, Place]]:
    """The pairs of places of a combination."""
    return itertools.combinations(enumerate(chosen), 2)


def completed(
    pair: tuple[Place, Place], sizes: Sequence[int], missing: Container[tuple[Place, Place]]
) -> Chosen:
    """A combination with a pair; on each other axis the position with most missing pairs."""
    chosen = dict(pair)

    def gain(place: Place) -> int:
        return sum(min((place, p), (p, place)) in missing for p in chosen.items())

    for axis, size in enumerate(sizes):
        if axis not in chosen:
            _, position = max(((axis, i) for i in range(size)), key=gain)
            chosen[axis] = position
    return tuple(chosen[axis] for axis in range(len(sizes)))
