"""Bytes that kernels read before they are written, found on programs whose answer is known."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quantglow.codegen.llvm.targets import level_target
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import BufferKind, Compute, View
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import PlannedProgram
from quantglow.memory.unwritten import unwritten_blocks
from quantglow.transforms.program.generate import reads_slack
from tests.support.pinned import NAMES, pinned

TARGET = level_target("portable")
SLACK = TARGET.isa.slack_nbytes


def planned(name: str) -> PlannedProgram:
    return plan_program(pinned(name), TARGET)


def cleared(name: str) -> set[int]:
    """The bytes of the arena in the blocks of a pinned graph."""
    planned_program = planned(name)
    blocks = unwritten_blocks(planned_program.program, planned_program.plan, SLACK)
    return {n for first, end in blocks for n in range(first * ALIGNMENT, end * ALIGNMENT)}


def first_convolution(built: PlannedProgram) -> View:
    """The operand of the first integer convolution that lies in the arena."""
    return next(
        view
        for step in built.program.instructions
        if isinstance(step, Compute)
        for node, view in zip(step.op.operands, step.inputs, strict=True)
        if reads_slack(step.op, node) and view.buffer.kind is BufferKind.TEMP
    )


@pytest.mark.parametrize("name", ["residual", "depthwise", "pyramid"])
def test_the_slack_behind_the_first_convolution_is_found(name: str) -> None:
    planned_program = planned(name)
    view = first_convolution(planned_program)
    end = planned_program.plan.offsets[view.buffer] + view.extent_bytes()[1]
    assert set(range(end, end + SLACK)) <= cleared(name)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_lie_in_the_arena_and_are_few(name: str) -> None:
    planned_program = planned(name)
    blocks = unwritten_blocks(planned_program.program, planned_program.plan, SLACK)
    assert all(0 <= first < end for first, end in blocks)
    assert all(end < first for (_, end), (first, _) in pairwise(blocks))
    assert not blocks or blocks[-1][1] * ALIGNMENT <= planned_program.plan.peak_nbytes + SLACK
    assert len(cleared(name)) <= 2048


def test_no_slack_needs_no_clearing() -> None:
    """Operands whose elements are dense have nothing between them."""
    planned_program = planned("residual")
    assert unwritten_blocks(planned_program.program, planned_program.plan, 0) == ()
