"""Bytes of the arena that kernels read before anything is written there.

Kernels may read the slack behind a temporary, and a row of a tensor that lies in a larger one by
whole vectors: they multiply what they find there by weights of 0, or drop it.  No result depends on
these bytes, but a checker of memory cannot know it, so that bundles clear them first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import (
    BufferKind,
    Compute,
    Fill,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.symbolic.size import decide, fixed
from quantglow.memory.planner import MemoryPlan
from quantglow.support.arrays import Array
from quantglow.transforms.program.generate import reads_slack

Blocks = tuple[tuple[int, int], ...]
"""First block of ``ALIGNMENT`` bytes, and one past the last block, of each range."""


def unwritten_blocks(program: Program, plan: MemoryPlan, slack_nbytes: int) -> Blocks:
    """Ranges of blocks with bytes that a kernel reads before they are written.

    ``slack_nbytes``: bytes behind a temporary that kernels may read.
    """
    nbytes = _align(plan.peak_nbytes + slack_nbytes)
    walk = _Walk(plan, slack_nbytes, np.zeros(nbytes, bool), np.zeros(nbytes, bool))
    walk.follow(program.instructions)
    blocks = walk.unwritten.reshape(-1, ALIGNMENT).any(axis=1)
    borders = np.flatnonzero(np.diff(blocks, prepend=False, append=False))
    return tuple((int(first), int(end)) for first, end in borders.reshape(-1, 2))


class _Walk:
    """A run of a program that keeps for each byte whether it is ``written``, and whether it is
    ``found``: read before."""

    def __init__(
        self, plan: MemoryPlan, slack_nbytes: int, written: Array, unwritten: Array
    ) -> None:
        self.plan, self.slack_nbytes = plan, slack_nbytes
        self.written, self.unwritten = written, unwritten

    def follow(self, steps: Sequence[Instruction]) -> None:
        """Read and write as instructions do; a loop may make no trip, so it writes nothing."""
        for step in steps:
            if isinstance(step, Repeat):
                inside = _Walk(self.plan, self.slack_nbytes, self.written.copy(), self.unwritten)
                inside.follow(step.body)
                continue
            for view in _overread(step):
                begin, end = self._read(view)
                self.unwritten[begin:end] |= ~self.written[begin:end]
            for view in _written_views(step):
                self._write(view)

    def _read(self, view: View) -> tuple[int, int]:
        """The first byte, and one past the last, that a kernel may touch; of a view that moves, all
        of its buffer."""
        moves = decide(view.advance != 0)
        first, last = fixed((0, view.buffer.nbytes) if moves else view.extent_bytes())
        at = self.plan.offsets[view.buffer]
        return at + first, min(at + last + self.slack_nbytes, self.unwritten.size)

    def _write(self, view: View) -> None:
        """Mark the bytes of a view; one that moves is left unwritten."""
        if decide(view.advance != 0) or view.type.is_empty:
            return
        size = view.type.dtype.nbytes
        at = self.plan.offsets[view.buffer] + int(view.offset_bytes)
        strides = (*(step * size for step in fixed(view.strides)), 1)
        shape = (*view.type.fixed_shape, size)
        places = np.lib.stride_tricks.as_strided(self.written[at:], shape, strides)
        places[...] = True


def _overread(step: Instruction) -> Iterator[View]:
    """Temporary operands beyond whose elements a kernel may read."""
    if isinstance(step, Compute):
        for node, view in zip(step.op.operands, step.inputs, strict=True):
            if view.buffer.kind is BufferKind.TEMP and reads_slack(step.op, node):
                yield view


def _written_views(step: Instruction) -> Iterator[View]:
    """Views in the arena of which an instruction writes each element."""
    views = step.boxes() if isinstance(step, Fill) else step.outs
    yield from (view for view in views if view.buffer.kind is BufferKind.TEMP)


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
