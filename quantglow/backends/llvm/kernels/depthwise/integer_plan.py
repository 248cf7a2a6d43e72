"""The plan of an integer depthwise convolution: its sizes, rows, blocks and packed constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.contraction.channel_order import channel_order
from quantglow.backends.llvm.kernels.contraction.dot_choice import dot_of
from quantglow.backends.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.backends.llvm.kernels.contraction.geometry import Image
from quantglow.backends.llvm.kernels.depthwise.constants import DepthwisePacker
from quantglow.backends.llvm.kernels.depthwise.plan import (
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
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.lazy import cached_property
from quantglow.ops import Conv
from quantglow.symbolic.size import likely
from quantglow.types import DType

CARRIED, PASSES = "carried", "passes"
"""Forms: interleaved columns stay in registers for the next block, or work goes by pairs of
vectors."""


def choice_of(rows: RowPlan, blocks: BlockPlan) -> Choice:
    """The choice of these rows and blocks."""
    tile = (rows.outputs, blocks.columns, blocks.vectors)
    return Choice(CARRIED if blocks.carry else PASSES, tile)


@dataclass
class IntegerPlan:
    """Sizes, order and constants of one integer depthwise kernel.

    ``chosen``: what was tuned.
    """

    step: Compute
    conv: Conv
    target: Target
    chosen: Choice | None = None

    def __post_init__(self) -> None:
        self.x, self.y = Image.of(self.step.inputs[0]), Image.of(self.step.output)
        self.residual = Image.of(self.step.inputs[3]) if self.conv.residual is not None else None
        self.dot = dot_of(self.conv, self.conv.x.type.dtype, self.target)
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
        return [k * self.conv.dilations[0] for k in range(self.conv.w.type.shape[0])]

    @cached_property
    def column_taps(self) -> list[int]:
        return [k * self.conv.dilations[1] for k in range(self.conv.w.type.shape[1])]

    @property
    def taps(self) -> ColumnTaps:
        """Places of the taps of an output column."""
        return self.taps_of(1)

    def taps_of(self, side: int) -> ColumnTaps:
        """The same of a group of ``side`` columns that lie side by side."""
        return ColumnTaps(tuple(self.column_taps), side * self.conv.strides[1])

    @cached_property
    def rows(self) -> RowPlan:
        """Output rows computed together, and the stacks of input rows."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.rows_of(self.chosen.tile[0])
        depth = STEP_NBYTES // self.x.itemsize
        plan = plan_rows(likely(self.y.height), self.row_taps, self.conv.strides[0], depth)
        assert self.y.height >= plan.outputs
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
                p for p in self.blocks_of(self.rows) if choice_of(self.rows, p) == self.chosen
            )
        return plan_block(self.rows, self.taps, self.target.registers, halves=self.cuts_channels)

    def blocks_of(self, rows: RowPlan) -> list[BlockPlan]:
        """The plans of blocks that can be chosen for some rows."""
        return block_plans(rows, self.taps, self.target.registers, halves=self.cuts_channels)

    @property
    def cuts_channels(self) -> bool:
        """Whether half as many channels are cheap to interleave."""
        return self.target.isa.permutes_bytes and self.x.itemsize == 1

    @property
    def possible_choices(self) -> list[Choice]:
        """All rows and blocks that can be chosen."""
        plans = map(self.rows_of, range(1, min(MOST_ROWS, self.y.height) + 1))
        return [choice_of(rows, blocks) for rows in plans for blocks in self.blocks_of(rows)]

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
