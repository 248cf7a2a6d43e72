"""Choice of the register tile of a convolution, and the order of channels in its vectors.

The cost model counts cycles of the inner loop: dot products, two loads in a cycle, and the latency
from one sum to the next; then the end of a tile, part of which the next tile hides, so short sums
are better in small tiles.  ``Core`` has the constants of processors, fitted to many tiles of all
convolutions of three networks: its choice takes 1 % longer than the best one on Zen 5, and 2 % on
Ice Lake, where the constants of Zen 5 would lose 7 %.  It is a pure function of shapes and
``StepCost``.

Four (two) vectors of sums are packed to one vector of bytes, two to one of 16-bit words.  Packs may
interleave groups of their operands' lanes, so weights are packed in the channel order that packs
bring back to the order of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from quantglow.codegen.llvm.isa.costs import StepCost
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.support.arrays import Array

FAR = 8192
"""Vectors of weights (half a megabyte of the widest) that do not stay near beside images."""
WIDTHS = 8
"""Number of widths for which the tile of a free width is chosen."""
TAIL = 4.0
"""Cycles lost by a tile of another size than most: its branches are predicted less often."""


@dataclass(frozen=True)
class Tile:
    """``rows`` x ``columns`` output pixels by ``vectors`` vectors of output channels."""

    rows: int
    columns: int
    vectors: int

    @property
    def pixels(self) -> int:
        return self.rows * self.columns


def cycles(pixels: int, vectors: int, steps: int, cost: StepCost, weights: float) -> float:
    """Model of one tile; ``weights`` are the cycles to read a vector of them."""
    core, computed = cost.core, _whole_pixels(pixels, cost)
    products = computed * (vectors * cost.dot + cost.operand)
    loads = pixels * cost.loads + vectors
    issued = (computed * vectors + loads + 1) / core.issue
    inner = max(products, loads / 2, core.latency, issued) + vectors * weights
    if count_held(pixels, vectors, cost) == cost.registers - 1:
        inner += core.crowded
    finish = pixels * sum(size * core.finish_cycles(size) for size in groups(vectors))
    return steps * inner + finish - core.overlap


def groups(vectors: int, most: int = 4) -> list[int]:
    """Numbers of vectors stored together: fours, then twos, then ones; at most ``most``."""
    sizes: list[int] = []
    for size in (4, 2, 1):
        if size <= most:
            count, vectors = divmod(vectors, size)
            sizes += [size] * count
    return sizes


def spans(total: int, size: int) -> list[tuple[int, int]]:
    """How often each length occurs when ``total`` is cut in pieces of ``size``."""
    full, tail = divmod(total, size)
    return [(length, count) for length, count in ((size, full), (tail, 1)) if length and count]


@cache
def choose_tile(height: int, width: int, channel_vectors: int, steps: int, cost: StepCost) -> Tile:
    """The tile with the fewest modeled cycles for an image of pixels and channel vectors."""
    best, best_cycles = Tile(1, 1, 1), float("inf")
    for tile in candidates(height, width, channel_vectors, cost):
        total = all_cycles(tile, height, width, channel_vectors, steps, cost)
        if total < best_cycles:
            best, best_cycles = tile, total
    return best


@cache
def choose_tile_of_free_width(width: int, channel_vectors: int, steps: int, cost: StepCost) -> Tile:
    """The tile with the fewest modeled cycles of a pixel over ``WIDTHS`` widths, from this one on.

    A tile that only saves the remainder of one width would serve all others badly.
    """

    def cycles_of_pixels(tile: Tile) -> float:
        widths = range(width, width + WIDTHS)
        return sum(all_cycles(tile, 1, w, channel_vectors, steps, cost) / w for w in widths)

    return min(candidates(1, width, channel_vectors, cost), key=cycles_of_pixels)


def all_cycles(
    tile: Tile, height: int, width: int, channel_vectors: int, steps: int, cost: StepCost
) -> float:
    """Model of an image cut into tiles."""
    total, core = 0.0, cost.core
    weights = core.far_weights if channel_vectors * steps > FAR else core.weights
    for rows, rows_count in spans(height, tile.rows):
        for columns, columns_count in spans(width, tile.columns):
            for vectors, vectors_count in spans(channel_vectors, tile.vectors):
                each = cycles(rows * columns, vectors, steps, cost, weights)
                each += 0.0 if Tile(rows, columns, vectors) == tile else TAIL
                total += rows_count * columns_count * vectors_count * each
    return total


@cache
def choose_shared_tile(
    height: int, width: int, vectors: int, steps: int, cost: StepCost
) -> tuple[Tile, float]:
    """The best tile, and its cycles, where two pixels share their last of ``vectors`` vectors."""

    def total(columns: int) -> float:
        return all_shared_cycles(columns, height, width, vectors, steps, cost)

    best = min(shared_candidates(width, vectors, cost), key=total)
    return Tile(1, best, vectors), total(best)


def all_shared_cycles(
    columns: int, height: int, width: int, vectors: int, steps: int, cost: StepCost
) -> float:
    """Model of an image cut into such tiles."""
    cut = spans(width, columns)
    return height * sum(n * _shared_cycles(p, vectors, steps, cost) for p, n in cut)


def shared_candidates(width: int, vectors: int, cost: StepCost) -> list[int]:
    """The columns of such tiles."""
    return [c for c in range(1, width + 1) if _shared_fits(c, vectors, cost)] or [1]


def _shared_sums(pixels: int, vectors: int) -> int:
    """Vectors of sums of a tile whose pixels share their last vector by pairs."""
    return pixels * (vectors - 1) + -(-pixels // 2)


def _shared_cycles(pixels: int, vectors: int, steps: int, cost: StepCost) -> float:
    """Model of one such tile."""
    core, sums = cost.core, _shared_sums(pixels, vectors)
    issued = (sums + pixels + pixels // 2 + vectors + 1) / core.issue
    inner = max(sums * cost.dot, (pixels + vectors) / 2, core.latency, issued)
    inner += vectors * core.weights
    finish = pixels * sum(size * core.finish_cycles(size) for size in groups(vectors - 1))
    return steps * inner + finish + -(-pixels // 2) * 2 * core.finish_cycles(1) - core.overlap


def _shared_fits(pixels: int, vectors: int, cost: StepCost) -> bool:
    """Whether sums, weights, the operands of a pair and their mixture stay in registers."""
    return _shared_sums(pixels, vectors) + vectors + 3 < cost.registers


def candidates(height: int, width: int, channel_vectors: int, cost: StepCost) -> list[Tile]:
    """The tiles of an image among which the best one is chosen."""
    # A tile of several rows has the whole width: then at most one of its sizes has a tail, and a
    # kernel has at most two bodies for pixels.
    return [
        Tile(rows, columns, vectors)
        for vectors in (1, 2, 3, 4, 6, 8)
        if vectors <= min(channel_vectors, cost.most_vectors)
        for rows in range(1, min(height, 8) + 1)
        for columns in range(1, min(width, cost.registers) + 1)
        if fits(rows * columns, vectors, cost)
        if rows == 1 or columns == width
    ]


def fits(pixels: int, vectors: int, cost: StepCost) -> bool:
    """Whether sums, the weights of a step and one operand stay in registers.

    One register stays free: LLVM spills when a loop needs them all.
    """
    if vectors > 4 and pixels > 1:
        return False
    return count_held(pixels, vectors, cost) < cost.registers


def count_held(pixels: int, vectors: int, cost: StepCost) -> int:
    """Registers that a step needs."""
    computed = _whole_pixels(pixels, cost)
    return computed * (vectors + cost.rows) + vectors * cost.weights + cost.operands


def _whole_pixels(pixels: int, cost: StepCost) -> int:
    """Pixels for which sums are computed."""
    return -(-pixels // cost.together) * cost.together


def channel_order(isa: InstructionSet, vectors: int, joined: int) -> Array:
    """int [vectors, lanes]: the channel (within a panel) that each lane of each vector holds, where
    up to ``joined`` vectors of results are stored together."""
    return _order(isa.vector_nbytes // 4, vectors, joined, isa.group_nbytes // 4)


@cache
def _order(lanes: int, vectors: int, joined: int, group: int) -> Array:
    """``channel_order`` for packs that interleave groups of ``group`` lanes."""
    order = np.empty((vectors, lanes), np.int64)
    first = 0
    index, within = np.divmod(np.arange(lanes), group)
    for size in groups(vectors, joined):
        for v in range(size):
            order[first + v] = first * lanes + index * group * size + v * group + within
        first += size
    order.setflags(write=False)
    return order
