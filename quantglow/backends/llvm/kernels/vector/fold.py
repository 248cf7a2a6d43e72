"""A row folded to one value: several accumulators of vectors, combined at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from quantglow.backends.llvm.builder import Builder, Value, f32, splat
from quantglow.backends.llvm.kernels.vector.vectors import Piece, narrower
from quantglow.symbolic.size import is_free

UNROLL = 4
"""Accumulators that a loop keeps, to hide the latency of one."""
NARROWEST = 4
"""Lanes of the narrowest vector."""


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
    """The combination of all elements, a scalar; the neutral one if there are none."""
    if is_free(length):
        return _fold_free_row(b, fold, lanes, length)
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
    if not found:
        return fold.neutral(1)
    return reduce(partial(fold.combine, 1), found)


def _fold_free_row(b: Builder, fold: Fold, lanes: int, length: int) -> Value:
    """``fold_row`` of a free length, in the same order."""
    total, done, width = _identity(fold, 1), 0, lanes
    steps = [(lanes, UNROLL)] if lanes > 1 else []
    while width >= NARROWEST:
        steps.append((width, 1))
        width //= 2
    for width, unroll in steps:
        count = (length - done) // (width * unroll)
        start = [fold.neutral(width) if width == lanes else _identity(fold, width)] * unroll
        added = partial(_added, b, fold, width, total, start, done, count)
        is_there = b.compare("sgt", b.index, str(count), "0")
        (total,) = b.if_so(is_there, [(fold.kind(1), total)], added)
        done += count * (width * unroll)
    return _loop(b, fold, 1, [total], done, length - done)


def _added(
    b: Builder,
    fold: Fold,
    lanes: int,
    total: Value,
    start: Sequence[Value],
    done: int,
    count: int,
) -> list[Value]:
    """A total combined with ``_loop``."""
    return [fold.combine(1, total, _loop(b, fold, lanes, start, done, count))]


def _identity(fold: Fold, lanes: int) -> Value:
    """The neutral element that also keeps -0."""
    kind, neutral = fold.kind(lanes), fold.neutral(lanes)
    zero = splat(kind, f32(0.0))
    return splat(kind, f32(-0.0)) if neutral == zero else neutral


def _loop(
    b: Builder, fold: Fold, lanes: int, start: Sequence[Value], done: int, count: int
) -> Value:
    """``count`` steps of vectors from the element ``done`` on, combined into one element."""
    loop = b.begin_while(str(count), [(fold.kind(lanes), value) for value in start])
    index = b.add(b.mul(loop.index, lanes * len(start)), str(done))
    values = b.end_while(loop, _combined_step(fold, lanes, index, loop.carried))
    return _joined(b, fold, lanes, values)


def _vectors(b: Builder, fold: Fold, lanes: int, unroll: int, start: int, count: int) -> Value:
    """``count`` steps of ``unroll`` vectors."""
    step = lanes * unroll
    loop = b.begin_loop(count, [(fold.kind(lanes), fold.neutral(lanes))] * unroll)
    index = b.add(b.mul(loop.index, step), start)
    values = b.end_loop(loop, _combined_step(fold, lanes, index, loop.carried))
    return _joined(b, fold, lanes, values)


def _combined_step(
    fold: Fold, lanes: int, index: Value | int, totals: Sequence[Value]
) -> list[Value]:
    """Neighbouring vectors combined with totals."""
    return [
        fold.combine(lanes, total, fold.load(index, Piece(i * lanes, lanes, lanes)))
        for i, total in enumerate(totals)
    ]


def _joined(b: Builder, fold: Fold, lanes: int, values: list[Value]) -> Value:
    """Vectors combined into one element."""
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
