"""The parts of an integer depthwise convolution, as pure functions of shapes.

Rows lie in stacks, channels in chunks, columns in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.ir.ops import Conv

UNROLLED_TAPS, MOST_TAPS = 81, 1024
"""Maximum number of taps that are unrolled, and where code may be large: 31x31 taps are compiled in
three seconds, and a grouped convolution takes ten times as long to run."""
FREE_REGISTERS = 4
"""Number of registers left for values that are loaded, shuffled and multiplied."""
MOST_ROWS, MOST_COLUMNS = 4, 4
"""Maximum numbers of output rows and columns of a block that can be chosen."""


def is_depthwise(conv: Conv, taps: int = UNROLLED_TAPS) -> bool:
    """Whether a convolution has one input channel for each result, and ``taps`` at most."""
    kh, kw = conv.w.type.fixed_shape[:2]
    return conv.depthwise and kh * kw <= taps


@dataclass(frozen=True)
class RowPlan:
    """Output rows computed together, and the input rows they need, in stacks of ``depth``: as many
    as a dot-product lane has elements."""

    outputs: int
    depth: int
    stacks: tuple[tuple[int, ...], ...]

    def placed(self, stack: int) -> tuple[int | None, ...]:
        """The row at each position of a stack; two rows of four lie apart, since products of words
        multiply even bytes, and odd ones."""
        rows = self.stacks[stack]
        filled = tuple(rows[i] if i < len(rows) else None for i in range(self.depth))
        if len(rows) == 2 and self.depth == 4:
            return rows[0], None, rows[1], None
        return filled

    def taps_at(self, stack: int, first: int, taps: list[int]) -> list[int | None]:
        """At each position of a stack, the index of the tap of the output row whose first input row
        is ``first``."""
        distances = [None if row is None else row - first for row in self.placed(stack)]
        return [taps.index(d) if d in taps else None for d in distances]

    def uses(self, taps: list[int], stride: int) -> list[list[int]]:
        """For each output row, the stacks that hold any of its taps."""
        return [
            [s for s, rows in enumerate(self.stacks) if {r * stride + t for t in taps} & set(rows)]
            for r in range(self.outputs)
        ]


def row_plan(outputs: int, taps: list[int], stride: int, depth: int) -> RowPlan:
    """The plan of so many output rows."""
    rows = sorted({r * stride + t for r in range(outputs) for t in taps})
    stacks = [tuple(rows[i : i + depth]) for i in range(0, len(rows), depth)]
    return RowPlan(outputs, depth, tuple(stacks))


def plan_rows(height: int, taps: list[int], stride: int, depth: int) -> RowPlan:
    """The plan with the fewest dot products and shuffles for each output row."""

    def cost(candidate: RowPlan) -> float:
        dots = sum(map(len, candidate.uses(taps, stride)))
        groups = -(-height // candidate.outputs)
        return (dots + len(candidate.stacks)) * groups

    plans = (row_plan(outputs, taps, stride, depth) for outputs in range(1, min(height, 2) + 1))
    return min(plans, key=cost)


@dataclass(frozen=True)
class Chunk:
    """``count`` runs of ``width`` channels from ``first``; ``valid`` of each are real."""

    first: int
    width: int
    valid: int
    count: int = 1


def cut_channels(channels: int, whole: int, narrowest: int) -> list[Chunk]:
    """Chunks of ``whole`` channels, then halves, quarters …, the last padded to ``narrowest``.

    A rest of more than half a whole is a whole one that overlaps the channels before it: to
    compute some channels twice costs less than narrow chunks.
    """
    chunks = []
    full, left = divmod(channels, whole)
    if full:
        chunks.append(Chunk(0, whole, whole, full))
    if full and left > whole // 2:
        return [*chunks, Chunk(channels - whole, whole, whole)]
    first, width = full * whole, whole // 2
    while left and width >= narrowest:
        if left >= width:
            chunks.append(Chunk(first, width, width))
            first, left = first + width, left - width
        width //= 2
    if left:
        chunks.append(Chunk(first, narrowest, left))
    return chunks


@dataclass(frozen=True)
class ColumnTaps:
    """Places of the taps of an output column, and the distance to those of the next one."""

    taps: tuple[int, ...]
    step: int

    def read(self, columns: int) -> set[int]:
        """Input columns of neighboring output columns."""
        return {tap + column * self.step for tap in self.taps for column in range(columns)}

    def shared(self, columns: int) -> list[int]:
        """Input columns that the next block of as many output columns reads again."""
        read = self.read(columns)
        return sorted(c for c in read if c - columns * self.step in read)


@dataclass(frozen=True)
class BlockPlan:
    """A block of an output row: the neighboring (groups of side-by-side) ``columns`` that share a
    pass over the weights, the vectors of channels (of the ``vectors`` of a run) of each pass, and
    whether interleaved columns stay in registers for the next block."""

    columns: int
    vectors: int
    passes: tuple[tuple[int, ...], ...]
    carry: bool


def plan_block(rows: RowPlan, taps: ColumnTaps, registers: int, *, halves: bool) -> BlockPlan:
    """Carry interleaved columns where they fit the registers, if need be (and ``halves`` are cheap
    to interleave) of half as many channels; else work by pairs of vectors, on two columns at a
    time where there are registers for it."""
    stacks, outputs, vectors = len(rows.stacks), rows.outputs, rows.depth
    if vectors * (stacks * len(taps.taps) + outputs) + FREE_REGISTERS <= registers:
        return BlockPlan(1, vectors, (tuple(range(vectors)),), carry=True)
    for columns in (2, 1) if halves else ():
        held = 2 * (stacks * len(taps.shared(columns)) + outputs * columns)
        if held + FREE_REGISTERS <= registers:
            return BlockPlan(columns, 2, ((0, 1),), carry=True)
    held = 2 * (2 * outputs + 2 * stacks) + 2 * outputs
    pairs = tuple((first, first + 1) for first in range(0, vectors, 2))
    columns = 2 if held + FREE_REGISTERS <= registers else 1
    return BlockPlan(columns, vectors, pairs, carry=False)


def block_plans(
    rows: RowPlan, taps: ColumnTaps, registers: int, *, halves: bool
) -> list[BlockPlan]:
    """All plans of blocks whose values stay in registers, and that of single columns that does
    without."""
    stacks, outputs, depth = len(rows.stacks), rows.outputs, rows.depth
    plans = []
    for vectors in sorted({2, depth} if halves else {depth}):
        for columns in range(1, MOST_COLUMNS + 1):
            held = vectors * (stacks * len(taps.shared(columns)) + outputs * columns)
            if held + FREE_REGISTERS <= registers:
                plans.append(BlockPlan(columns, vectors, (tuple(range(vectors)),), carry=True))
    pairs = tuple((first, first + 1) for first in range(0, depth, 2))
    for columns in range(1, MOST_COLUMNS + 1):
        held = 2 * columns * (outputs + stacks) + 2 * outputs
        if columns == 1 or held + FREE_REGISTERS <= registers:
            plans.append(BlockPlan(columns, depth, pairs, carry=False))
    return plans
