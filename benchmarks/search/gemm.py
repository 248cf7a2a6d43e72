"""A space of the size that the paper searched: a float product of 1024 x 1024 x 1024.

Its states and moves are the paper's: m and n in four factors, k in two, all powers of two; a move
doubles one factor and halves another of the same size.  The cost is a model, free of noise: what is
in registers, instructions in a cycle, two caches, and results written back between parts of k.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from quantglow.support.arrays import Array
from quantglow.tuning.searchers import NOWHERE, Space

EXPONENT = 10
PARTS = (4, 2, 4)
LANES, REGISTERS = 16, 32
FIRST_CACHE, SECOND_CACHE = 32 * 2**10, 2**20
"""Sizes of caches, in bytes."""
SECOND_NBYTES, MEMORY_NBYTES = 32.0, 4.0
"""Bytes in a cycle from the second cache, and from memory."""


def gemm_space() -> tuple[Space, Array, int]:
    """The space, the cycles of each state, and the untiled state."""
    groups = [compositions(EXPONENT, parts) for parts in PARTS]
    sizes = [len(group) for group in groups]
    chosen = np.indices(sizes).reshape(len(groups), -1)
    pairs = list(zip(groups, chosen, strict=True))
    exponents = np.concatenate([np.array(group)[each] for group, each in pairs], axis=1)
    strides = np.cumprod([1, *sizes[:0:-1]])[::-1]
    ends = []
    for (group, each), stride in zip(pairs, strides, strict=True):
        steps = moves_in(group)[each]
        moved = np.arange(len(each))[:, None] + (steps - each[:, None]) * stride
        ends.append(np.where(steps == NOWHERE, NOWHERE, moved))
    space = Space(exponents, np.concatenate(ends, axis=1), np.ones(len(exponents)))
    untiled = np.zeros(sum(PARTS), np.int64)
    untiled[np.cumsum((0, *PARTS[:-1]))] = EXPONENT
    start = int(np.flatnonzero((exponents == untiled).all(axis=1))[0])
    return space, cycles(2.0**exponents), start


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """All tuples of exponents with this sum."""
    actual = product(range(total + 1), repeat=parts - 1)
    return [(*each, total - sum(each)) for each in actual if sum(each) <= total]


def moves_in(group: list[tuple[int, ...]]) -> Array:
    """For each tuple the ends of all moves: one exponent up, another one down."""
    places = {each: number for number, each in enumerate(group)}
    axes = range(len(group[0]))
    pairs = [(up, down) for up, down in product(axes, repeat=2) if up != down]
    rows = []
    for each in group:
        changed = ([e + (a == up) - (a == down) for a, e in enumerate(each)] for up, down in pairs)
        rows.append([places.get(tuple(to), NOWHERE) for to in changed])
    return np.array(rows, np.int64)


def cycles(factors: Array) -> Array:
    """Modelled cycles of states [n, 10]: m0 … m3, k0, k1, n0 … n3."""
    m, k, n = factors[:, :4], factors[:, 4:6], factors[:, 6:]
    vectors = np.ceil(n[:, 3] / LANES)
    sums = m[:, 3] * vectors
    spilled = np.maximum(0.0, sums + vectors + 1 - REGISTERS)
    loads = m[:, 3] + vectors + 2 * spilled
    unrolled = np.minimum(k[:, 1], 8.0)
    issued = (sums + loads + 3 / unrolled) / 4
    step = np.maximum.reduce([sums / 2, loads / 2, issued, np.full(len(m), 4.0)])
    tiles = (2.0**EXPONENT / m[:, 3]) * (2.0**EXPONENT / n[:, 3])
    written = 3 * sums + 8
    total = tiles * (2.0**EXPONENT * step + k[:, 0] * written)
    for level, capacity, rate in (
        (2, FIRST_CACHE, SECOND_NBYTES),
        (1, SECOND_CACHE, MEMORY_NBYTES),
    ):
        rows, columns = m[:, level:].prod(axis=1), n[:, level:].prod(axis=1)
        held = 4 * (rows * k[:, 1] + columns * k[:, 1] + rows * columns)
        moved = 4 * 2.0 ** (3 * EXPONENT) * (1 / rows + 1 / columns + 2 * k[:, 0] / 2.0**EXPONENT)
        again = 1 + np.log2(np.maximum(1.0, held / capacity))
        total = total + moved * again / rate
    return np.asarray(total)
