"""Plan of an integer depthwise convolution: sizes, blocks, packed constants, interleaved rows.

Constants: for each run of channels, for each column tap, for each (output row, stack) pair, the
vectors of weights of a run.  The weights of a stack are those of its rows, zero where a row is no
tap.  A dot product with an excess has a bias for each output row, since a weight stands at
different positions of the stacks of different rows.

Rows: a stack of four rows of bytes (two of 16-bit words) becomes vectors whose lanes hold the
elements of all its rows of one channel, in ``channel_order``.  Rows as wide as a vector are
interleaved within the groups that packs interleave, with every instruction set.  Rows half as wide
lie two in a vector and are gathered by permutations of bytes across it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout, choose_dot
from quantglow.codegen.llvm.kernels.contraction.tiling import channel_order
from quantglow.codegen.llvm.kernels.depthwise.plan import (
    MOST_ROWS,
    MOST_TAPS,
    UNROLLED_TAPS,
    BlockPlan,
    Chunk,
    ColumnTaps,
    RowPlan,
    block_plans,
    cut_channels,
    is_depthwise,
    plan_block,
    plan_rows,
    row_plan,
)
from quantglow.codegen.llvm.values import I8, I16, Value, bits_type, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import decide, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

CARRIED, PASSES = "carried", "passes"
"""Forms: interleaved columns stay in registers for the next block, or work goes by pairs of
vectors."""


def block_choice(rows: RowPlan, blocks: BlockPlan) -> KernelChoice:
    """The choice of these rows and blocks."""
    tile = (rows.outputs, blocks.columns, blocks.vectors)
    return KernelChoice(CARRIED if blocks.carry else PASSES, tile)


@dataclass
class IntegerPlan:
    """Sizes, order and constants of one integer depthwise kernel.

    ``chosen``: what was tuned.
    """

    step: Compute
    conv: Conv
    target: Target
    chosen: KernelChoice | None = None

    def __post_init__(self) -> None:
        self.x, self.y = ImageLayout.of(self.step.inputs[0]), ImageLayout.of(self.step.output)
        self.residual = (
            ImageLayout.of(self.step.inputs[3]) if self.conv.residual is not None else None
        )
        self.dot = choose_dot(self.conv, self.conv.x.type.dtype, self.target)
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def applies(self) -> bool:
        integers = {DType.U8, DType.I8, DType.I16}
        of_integers = self.conv.x.type.dtype in integers
        has_result = self.conv.type.dtype in {*integers, DType.F32}
        most = UNROLLED_TAPS if self.target.saves_code else MOST_TAPS
        return is_depthwise(self.conv, most) and of_integers and has_result

    @cached_property
    def row_taps(self) -> list[int]:
        return [k * self.conv.dilations[0] for k in range(self.conv.w.type.fixed_shape[0])]

    @cached_property
    def column_taps(self) -> list[int]:
        return [k * self.conv.dilations[1] for k in range(self.conv.w.type.fixed_shape[1])]

    @property
    def taps(self) -> ColumnTaps:
        """Places of the taps of an output column."""
        return self.side_taps(1)

    def side_taps(self, side: int) -> ColumnTaps:
        """The same of a group of ``side`` columns that lie side by side."""
        return ColumnTaps(tuple(self.column_taps), side * self.conv.strides[1])

    @cached_property
    def rows(self) -> RowPlan:
        """Output rows computed together, and the stacks of input rows."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.rows_of(self.chosen.tile[0])
        depth = STEP_NBYTES // self.x.itemsize
        plan = plan_rows(likely(self.y.height), self.row_taps, self.conv.strides[0], depth)
        assert decide(self.y.height >= plan.outputs)
        return plan

    def rows_of(self, outputs: int) -> RowPlan:
        """The plan of so many output rows."""
        depth = STEP_NBYTES // self.x.itemsize
        return row_plan(outputs, self.row_taps, self.conv.strides[0], depth)

    @cached_property
    def uses(self) -> list[list[int]]:
        """For each output row, the stacks that hold any of its taps."""
        return self.rows.uses(self.row_taps, self.conv.strides[0])

    def tap_places(self, row: int, stack: int) -> list[int]:
        """Positions within a stack of the taps of an output row."""
        taps = self.rows.taps_at(stack, row * self.conv.strides[0], self.row_taps)
        return [place for place, tap in enumerate(taps) if tap is not None]

    @cached_property
    def blocks(self) -> BlockPlan:
        """Columns and vectors of a pass."""
        if self.chosen is not None:
            return next(
                p for p in self.row_blocks(self.rows) if block_choice(self.rows, p) == self.chosen
            )
        return plan_block(self.rows, self.taps, self.target.registers, halves=self.cuts_channels)

    def row_blocks(self, rows: RowPlan) -> list[BlockPlan]:
        """The plans of blocks that can be chosen for some rows."""
        return block_plans(rows, self.taps, self.target.registers, halves=self.cuts_channels)

    @property
    def cuts_channels(self) -> bool:
        """Whether half as many channels are cheap to interleave."""
        return self.target.isa.permutes_bytes and self.x.itemsize == 1

    @property
    def possible_choices(self) -> list[KernelChoice]:
        """All rows and blocks that can be chosen."""
        plans = map(self.rows_of, range(1, min(MOST_ROWS, likely(self.y.height)) + 1))
        return [block_choice(rows, blocks) for rows in plans for blocks in self.row_blocks(rows)]

    @property
    def vectors(self) -> int:
        """Vectors of a run of channels."""
        return self.blocks.vectors

    @property
    def channels(self) -> int:
        """Channels of a run."""
        return self.vectors * self.dot.lanes

    @cached_property
    def chunks(self) -> list[Chunk]:
        """How the channels are cut."""
        narrowest = self.target.isa.group_nbytes // self.x.itemsize
        return cut_channels(self.y.channels, self.channels, narrowest)

    def constants(self) -> tuple[Array, Array, Array]:
        """Weights, bias (input zero point folded in) and multipliers."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        sums = w.value.astype(np.int64).sum(axis=(0, 1, 2))
        bias = b.value.astype(np.int64) - self.conv.x.type.params.zero_point * sums
        order = channel_order(self.target.isa, self.vectors, self.vectors)
        packer = DepthwisePacker(
            self.dot, order, self.chunks, self.rows, self.row_taps, self.conv.strides[0]
        )
        return (
            packer.weights(w.value[:, :, 0]),
            packer.bias(bias.astype(np.int32), w.value[:, :, 0]),
            packer.per_channel(self.epilogue.multipliers()),
        )

    @property
    def bias_rows(self) -> int:
        """Output rows that have a bias of their own."""
        return self.rows.outputs if self.dot.exceeds else 1

    @property
    def pairs(self) -> int:
        """(output row, stack) pairs of one column tap."""
        return sum(map(len, self.uses))

    @property
    def run_nbytes(self) -> int:
        """Packed weight bytes of one run of channels."""
        return len(self.column_taps) * self.pairs * self.vectors * self.dot.weight_nbytes


@dataclass(frozen=True)
class DepthwisePacker:
    """Packs HWIO depthwise weights [KH, KW, C] for given chunks."""

    dot: DotProduct
    order: Array
    """int [vectors, lanes]: the channel of each sum of a run."""
    chunks: list[Chunk]
    rows: RowPlan
    row_taps: list[int]
    stride: int

    def runs(self) -> list[Array]:
        """For each run of channels: int [vectors, lanes], the channel of each sum, -1 for none."""
        return [c for chunk in self.chunks for c in self._chunk_runs(chunk)]

    def _chunk_runs(self, chunk: Chunk) -> list[Array]:
        order = self.order % chunk.width
        channels = np.where(order < chunk.valid, order + chunk.first, -1)
        return [np.where(channels < 0, -1, channels + i * chunk.width) for i in range(chunk.count)]

    def weights(self, w: Array) -> Array:
        """All packed weights as bytes."""
        pieces = [self.dot.pack(stacks) for stacks in self._stacks(w)]
        return np.concatenate([piece.view(np.uint8).reshape(-1) for piece in pieces])

    def bias(self, values: Array, w: Array) -> Array:
        """int32: the initial sums of each run, of each output row where they differ."""
        if not self.dot.exceeds:
            return self.per_channel(values)
        extended = np.append(values, values.dtype.type(0))
        sums = [
            extended[channels] - self._excess(stacks, row)
            for channels, stacks in zip(self.runs(), self._stacks(w), strict=True)
            for row in range(self.rows.outputs)
        ]
        return np.concatenate([each.reshape(-1) for each in sums])

    def _excess(self, stacks: Array, row: int) -> Array:
        """int32 [vectors, lanes] of an output row, for the stacks of a run."""
        sums = np.zeros(stacks.shape[2:4], np.int64)
        for pair, (of, taps) in enumerate(self._pairs()):
            if of == row:
                positions = [place for place, tap in enumerate(taps) if tap is not None]
                sums += self.dot.excess(stacks[:, pair], positions).sum(axis=0)
        return sums.astype(np.int32)

    def _stacks(self, w: Array) -> Iterator[Array]:
        """[column taps, pairs, vectors, lanes, rows of a stack] of each run."""
        w = w.astype(self.dot.weights_dtype, copy=False)
        none = np.zeros_like(w[:1])
        # Index -1 picks the row, and the channel, of zeros.
        extended = np.pad(np.concatenate([w, none]), ((0, 0), (0, 0), (0, 1)))
        indices = np.array([[-1 if t is None else t for t in taps] for _, taps in self._pairs()])
        for channels in self.runs():
            chosen = extended[:, :, channels][indices]  # [pairs, rows, column taps, vectors, lanes]
            yield np.ascontiguousarray(chosen.transpose(2, 0, 3, 4, 1))

    def _pairs(self) -> list[tuple[int, list[int | None]]]:
        """Each output row with the index of the tap at each position of a stack that it uses."""
        uses = self.rows.uses(self.row_taps, self.stride)
        return [
            (row, self.rows.taps_at(s, row * self.stride, self.row_taps))
            for row, used in enumerate(uses)
            for s in used
        ]

    def per_channel(self, values: Array) -> Array:
        """Per-channel values in the order of the sums; zero where there is no channel."""
        extended = np.append(values, values.dtype.type(0))
        return np.concatenate([extended[c].reshape(-1) for c in self.runs()])


@dataclass(frozen=True)
class RowStack:
    """Rows of an input that fill ``vectors`` vectors when interleaved.

    ``order``: which row is at each position.
    """

    rows: Sequence[Value]
    vectors: int
    order: Sequence[int]

    @property
    def depth(self) -> int:
        """Rows of a full stack."""
        return len(self.order)


def interleave(
    b: Builder, isa: InstructionSet, stack: RowStack, indices: Sequence[int]
) -> list[Value]:
    """The vectors of a stack at ``indices``."""
    depth = stack.depth
    if stack.vectors < depth:
        return [_gather(b, isa, stack, index) for index in indices]
    loaded = [_as_bytes(b, isa, row, depth) for row in stack.rows]
    rows = [loaded[index] for index in stack.order]
    if depth == 2:
        return [_zip(b, isa, rows[0], rows[1], 2, half) for half in indices]
    result: list[Value] = []
    for half in (0, 1):
        vectors = [g for g in (2 * half, 2 * half + 1) if g in indices]
        if vectors:
            upper = _zip(b, isa, rows[0], rows[1], 1, half)
            lower = _zip(b, isa, rows[2], rows[3], 1, half)
            result += [_zip(b, isa, upper, lower, 2, g % 2) for g in vectors]
    return result


def _as_bytes(b: Builder, isa: InstructionSet, row: Value, depth: int) -> Value:
    if depth == STEP_NBYTES:
        return row
    nbytes = isa.vector_nbytes
    return b.cast("bitcast", vector(nbytes // 2, I16), row, vector(nbytes, I8))


def _gather(b: Builder, isa: InstructionSet, stack: RowStack, index: int) -> Value:
    """Vector ``index`` of a stack of byte rows of half a vector each."""
    count, rows = isa.vector_nbytes, stack.rows
    half, whole = vector(count // 2, I8), vector(count, I8)
    padded = [*rows, "poison"]
    pairs = [
        b.shuffle(half, padded[i], padded[i + 1], range(count)) for i in range(0, len(rows), 2)
    ]
    channels = channel_order(isa, stack.vectors, stack.vectors)[index]
    order = [(count // 2) * row + int(channel) for channel in channels for row in stack.order]
    return b.shuffle(whole, pairs[0], [*pairs, "poison"][1], order)


def _zip(b: Builder, isa: InstructionSet, x: Value, y: Value, size: int, half: int) -> Value:
    """Interleave the low (0) or high (1) halves of groups, by ``size`` bytes."""
    whole, count = vector(isa.vector_nbytes, I8), isa.vector_nbytes // size
    kind = vector(count, bits_type(8 * size))
    if size > 1:
        x, y = (b.cast("bitcast", whole, v, kind) for v in (x, y))
    mixed = b.shuffle(kind, x, y, _zip_order(count, isa.group_nbytes // size, half))
    return b.cast("bitcast", kind, mixed, whole) if size > 1 else mixed


@cache
def _zip_order(count: int, in_group: int, half: int) -> tuple[int, ...]:
    """The lanes of two vectors of ``count`` elements that ``_zip`` takes in turn."""
    return tuple(
        lane + half * (in_group // 2) + i + other
        for lane in range(0, count, in_group)
        for i in range(in_group // 2)
        for other in (0, count)
    )
