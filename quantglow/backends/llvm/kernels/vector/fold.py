"""A row folded to one value: several accumulators of vectors, combined at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.kernels.vector.vectors import Piece, narrower

UNROLL = 4
"""Accumulators that a loop keeps, to hide the latency of one."""


@dataclass(frozen=True)
class Combination:
    """An associative operation on lanes, with its neutral element."""

    kind: Callable[[int], str]
    neutral: Callable[[int], Value]
    combine: Callable[[int, Value, Value], Value]


@dataclass(frozen=True)
class Fold(Combination):
    """A fold of a row.  ``load`` computes the lanes of a piece that counts from an index."""

    load: Callable[[Value | int, Piece], Value]


def fold_row(b: Builder, fold: Fold, lanes: int, length: int) -> Value:
    """The combination of all elements, a scalar; ``length`` > 0."""
    found: list[Value] = []
    start = 0
    for unroll in (UNROLL, 1):
        step = lanes * unroll
        count = (length - start) // step
        if lanes > 1 and count:
            found.append(_vectors(b, fold, lanes, unroll, start, count))
            start += count * step
    for piece in _rest(start, length, lanes):
        found.append(across(b, fold, piece.lanes, fold.load(0, piece)))
    total = found[0]
    for value in found[1:]:
        total = fold.combine(1, total, value)
    return total


def _vectors(b: Builder, fold: Fold, lanes: int, unroll: int, start: int, count: int) -> Value:
    """``count`` steps of ``unroll`` vectors."""
    step = lanes * unroll
    loop = b.begin_loop(count, [(fold.kind(lanes), fold.neutral(lanes))] * unroll)
    index = b.add(b.mul(loop.index, step), start)
    values = [
        fold.combine(lanes, total, fold.load(index, Piece(i * lanes, lanes, lanes)))
        for i, total in enumerate(loop.carried)
    ]
    values = b.end_loop(loop, values)
    while len(values) > 1:
        half = len(values) // 2
        values = [fold.combine(lanes, values[i], values[half + i]) for i in range(half)]
    return across(b, fold, lanes, values[0])


def _rest(start: int, stop: int, lanes: int) -> Iterator[Piece]:
    """Narrower and narrower vectors, then scalars."""
    while start < stop:
        width = narrower(lanes, stop - start)
        yield Piece(start, width, width)
        start += width


def across(b: Builder, fold: Combination, lanes: int, value: Value) -> Value:
    """All lanes combined into one."""
    while lanes > 1:
        kind, lanes = fold.kind(lanes), lanes // 2
        if lanes == 1:
            halves = [b.emit(f"extractelement {kind} {value}, i32 {i}") for i in range(2)]
        else:
            halves = [
                b.shuffle(kind, value, "poison", range(i * lanes, (i + 1) * lanes))
                for i in range(2)
            ]
        value = fold.combine(lanes, *halves)
    return value
