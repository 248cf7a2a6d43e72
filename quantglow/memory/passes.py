"""The passes over programs, and the order they run in."""

from __future__ import annotations

from collections.abc import Callable

from quantglow.instr.program import Program
from quantglow.instr.verify import verify_program
from quantglow.memory.share import share_in_place
from quantglow.memory.share_carried import share_carried
from quantglow.pass_manager import run_in_order

ProgramPass = Callable[[Program], Program]

PROGRAM_PASSES: tuple[ProgramPass, ...] = (share_in_place, share_carried)


def optimize_program(program: Program) -> Program:
    """The same results from fewer buffers."""
    return run_in_order(program, PROGRAM_PASSES, verify_program)
