"""In-place execution: a result takes over the buffer of an operand that dies in the same step."""

from __future__ import annotations

from dataclasses import replace

from quantglow.instr.in_place import in_place_positions
from quantglow.instr.lifetimes import first_uses, last_uses, with_lifetimes
from quantglow.instr.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Dealloc,
    Program,
    View,
)
from quantglow.pass_manager import declined
from quantglow.symbolic.shapes import surely_equal


def share_in_place(program: Program) -> Program:
    """Rename result buffers to operand buffers if the result of the program stays the same."""
    steps = [s for s in program.instructions if not isinstance(s, Alloc | Dealloc)]
    first_use, last_use = first_uses(steps), last_uses(steps)
    renamed: dict[Buffer, Buffer] = {}
    for index, step in enumerate(steps):
        if not isinstance(step, Compute):
            continue
        out = step.output
        for view in in_place_candidates(step):
            if out.buffer in renamed:
                break
            if last_use[view.buffer] != index:
                declined(out.buffer.name, f"{view.buffer} is read later")
            elif first_use[out.buffer] != index:
                declined(out.buffer.name, "another step has written a part of it")
            elif not interchangeable(view, out):
                declined(out.buffer.name, f"{view} cannot stand for {out}")
            else:
                renamed[out.buffer] = renamed.get(view.buffer, view.buffer)
    if not renamed:
        return program

    def moved(v: View) -> View:
        return replace(v, buffer=renamed.get(v.buffer, v.buffer))

    return replace(program, instructions=with_lifetimes([step.mapped(moved) for step in steps]))


def replaceable(step: Compute) -> list[Buffer]:
    """Buffers of operands that the result takes over if they die in this step, and if nothing wrote
    to its own before."""
    found = in_place_candidates(step)
    return [view.buffer for view in found if interchangeable(view, step.output)]


def in_place_candidates(step: Compute) -> list[View]:
    """Operand views that the result may replace: all readers of that buffer permit it."""
    positions = in_place_positions(step.op)
    return [
        view
        for position, view in enumerate(step.inputs)
        if position in positions
        and all(
            other == view and index in positions
            for index, other in enumerate(step.inputs)
            if other.buffer is view.buffer
        )
    ]


def interchangeable(view: View, out: View) -> bool:
    """Whether two views are the same part of temporaries of equal size."""
    return (
        view.buffer.kind is BufferKind.TEMP
        and out.buffer.kind is BufferKind.TEMP
        and surely_equal((view.buffer.nbytes, view.offset), (out.buffer.nbytes, out.offset))
        and surely_equal(view.shape, out.shape)
        and surely_equal(view.strides, out.strides)
        and view.type.dtype.nbytes == out.type.dtype.nbytes
    )
