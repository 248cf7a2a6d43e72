"""How an integer depthwise convolution is cut: rows into quads, channels into chunks, columns into
blocks.  Pure functions of shapes."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 4
"""Rows in a quad: the bytes of a dot-product lane."""
LANE_NBYTES = 16
"""A 128-bit lane: the narrowest chunk of channels."""
FREE_REGISTERS = 4
"""Registers left for what is loaded, shuffled and multiplied."""


@dataclass(frozen=True)
class RowPlan:
    """Output rows computed together, and the input rows they need, four to a quad."""

    outputs: int
    quads: tuple[tuple[int, ...], ...]

    def uses(self, taps: list[int], stride: int) -> list[list[int]]:
        """For each output row, the quads that hold any of its taps."""
        return [
            [q for q, rows in enumerate(self.quads) if {r * stride + t for t in taps} & set(rows)]
            for r in range(self.outputs)
        ]


def plan_rows(height: int, taps: list[int], stride: int) -> RowPlan:
    """The plan with the fewest dot products and shuffles for each output row."""

    def plan(outputs: int) -> RowPlan:
        rows = sorted({r * stride + t for r in range(outputs) for t in taps})
        quads = [tuple(rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)]
        return RowPlan(outputs, tuple(quads))

    def cost(candidate: RowPlan) -> float:
        dots = sum(map(len, candidate.uses(taps, stride)))
        groups = -(-height // candidate.outputs)
        return (dots + len(candidate.quads)) * groups

    return min((plan(n) for n in range(1, min(height, 2) + 1)), key=cost)


@dataclass(frozen=True)
class Chunk:
    """``count`` runs of ``width`` channels from ``first``; ``valid`` of each are real."""

    first: int
    width: int
    valid: int
    count: int = 1


def cut_channels(channels: int, vector_nbytes: int) -> list[Chunk]:
    """Whole vectors, then halves, quarters …, the last padded to a lane.

    A rest of more than half a vector is a whole one that overlaps the channels before it: to
    compute some channels twice costs less than narrow chunks.
    """
    chunks = []
    full, rest = divmod(channels, vector_nbytes)
    if full:
        chunks.append(Chunk(0, vector_nbytes, vector_nbytes, full))
    if full and rest > vector_nbytes // 2:
        return [*chunks, Chunk(channels - vector_nbytes, vector_nbytes, vector_nbytes)]
    first, width = full * vector_nbytes, vector_nbytes // 2
    while rest and width >= LANE_NBYTES:
        if rest >= width:
            chunks.append(Chunk(first, width, width))
            first, rest = first + width, rest - width
        width //= 2
    if rest:
        chunks.append(Chunk(first, LANE_NBYTES, rest))
    return chunks


@dataclass(frozen=True)
class BlockPlan:
    """How many neighbouring (groups of side-by-side) columns share a pass over the weights, which
    of the four vectors of channels a pass computes, and whether interleaved columns stay in
    registers for the next block."""

    columns: int
    passes: tuple[tuple[int, ...], ...]
    carry: bool


WHOLE = ((0, 1, 2, 3),)
HALVES = ((0, 1), (2, 3))


def plan_block(rows: RowPlan, column_taps: int, registers: int) -> BlockPlan:
    """Carry interleaved columns where they fit the registers; else work by halves of channels, on
    two columns at a time where there are registers for it."""
    quads, outputs = len(rows.quads), rows.outputs
    if 4 * quads * column_taps + 4 * outputs + FREE_REGISTERS <= registers:
        return BlockPlan(1, WHOLE, carry=True)
    held = 2 * (2 * outputs + 2 * quads) + 2 * outputs
    return BlockPlan(2 if held + FREE_REGISTERS <= registers else 1, HALVES, carry=False)
