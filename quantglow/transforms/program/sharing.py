"""In-place execution: results and carried values share buffers; ``PROGRAM_PASSES`` in order.

A result takes over the buffer of an operand that dies in the same step.  The next value that a loop
carries is computed right where the last one lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from quantglow.ir.program.lifetimes import first_uses, last_uses, with_lifetimes
from quantglow.ir.program.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Dealloc,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.program.verify import in_place_positions, verify_program
from quantglow.ir.symbolic.size import decide, surely_equal
from quantglow.transforms.pass_manager import decline, run_in_order

ProgramPass = Callable[[Program], Program]


def share_in_place(program: Program) -> Program:
    """Rename result buffers to operand buffers if the result of the program stays the same."""
    steps = [s for s in program.instructions if not isinstance(s, Alloc | Dealloc)]
    first_use, last_use = first_uses(steps), last_uses(steps)
    renamed: dict[Buffer, Buffer] = {}
    for index, step in enumerate(steps):
        if not isinstance(step, Compute):
            continue
        out = step.output
        for view in _in_place_candidates(step):
            if out.buffer in renamed:
                break
            if last_use[view.buffer] != index:
                decline(out.buffer.name, f"{view.buffer} is read later")
            elif first_use[out.buffer] != index:
                decline(out.buffer.name, "another step has written a part of it")
            elif not _interchangeable(view, out):
                decline(out.buffer.name, f"{view} cannot stand for {out}")
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
    candidates = _in_place_candidates(step)
    return [view.buffer for view in candidates if _interchangeable(view, step.output)]


def _in_place_candidates(step: Compute) -> list[View]:
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


def _interchangeable(view: View, out: View) -> bool:
    """Whether two views are the same part of temporaries of equal size."""
    return (
        view.buffer.kind is BufferKind.TEMP
        and out.buffer.kind is BufferKind.TEMP
        and surely_equal((view.buffer.nbytes, view.offset), (out.buffer.nbytes, out.offset))
        and surely_equal(view.shape, out.shape)
        and surely_equal(view.strides, out.strides)
        and view.type.dtype.nbytes == out.type.dtype.nbytes
    )


def share_carried(program: Program) -> Program:
    """Compute next values in the buffers of carried ones that nothing reads later."""
    steps = [s for s in program.instructions if not isinstance(s, Alloc | Dealloc)]
    changed = _each_shared(steps, set())
    if all(new is old for new, old in zip(changed, steps, strict=True)):
        return program
    return replace(program, instructions=with_lifetimes(changed))


def _each_shared(steps: Sequence[Instruction], outside: Set[Buffer]) -> list[Instruction]:
    """The steps, those in loops with fewer copies; ``outside``: buffers that others touch."""
    loops = [i for i, step in enumerate(steps) if isinstance(step, Repeat)]
    changed = list(steps)
    for index in loops:
        others = _buffers([*changed[:index], *changed[index + 1 :]])
        changed[index] = _share(changed[index], outside | others)
    return changed


def _buffers(steps: Sequence[Instruction]) -> set[Buffer]:
    return {view.buffer for step in steps for view in step.views}


def _share(loop: Instruction, outside: Set[Buffer]) -> Instruction:
    """A loop with fewer copies."""
    assert isinstance(loop, Repeat)
    body = _each_shared(loop.body, outside)
    while copy := next((c for c in body if _is_needless(c, body, outside)), None):
        body = _without(copy, body)
    same = len(body) == len(loop.body) and all(a is b for a, b in zip(body, loop.body, strict=True))
    return loop if same else replace(loop, body=tuple(body))


def _is_needless(
    copy: Instruction, body: Sequence[Instruction], outside: Set[Buffer]
) -> TypeGuard[Copy]:
    """Whether a step is a copy whose source could be computed in its destination."""
    if not isinstance(copy, Copy) or copy.src.buffer in outside:
        return False
    src, dst, end = copy.src, copy.dst, body.index(copy)
    writers = [i for i, step in enumerate(body) if _writes(step, src.buffer)]
    moves = decide(src.advance != 0) or decide(dst.advance != 0)
    if moves or not _interchangeable(src, dst) or len(writers) != 1:
        return False
    producer = body[writers[0]]
    # The old value in ``dst`` must be dead once the producer runs: other steps that touch it come
    # before, and only read it.  The producer itself may read it if it may work in place.
    old = {i for i, step in enumerate(body) if _touches(step, dst.buffer)} - {end}
    if not isinstance(producer, Compute) or producer.output != src or end < max(old, default=end):
        return False
    if max(old, default=-1) > writers[0] or any(_writes(body[i], dst.buffer) for i in old):
        decline(dst.buffer.name, "its old value is read later")
        return False
    return writers[0] not in old or _in_place(producer, dst)


def _in_place(step: Compute, dst: View) -> bool:
    """Whether a step may write its result over this operand."""
    read = [view for view in step.inputs if view.buffer is dst.buffer]
    allowed = _in_place_candidates(step)
    return all(view in allowed and _interchangeable(view, step.output) for view in read)


def _writes(step: Instruction, buffer: Buffer) -> bool:
    return any(view.buffer is buffer for view in (*step.outs, *step.inouts))


def _touches(step: Instruction, buffer: Buffer) -> bool:
    return any(view.buffer is buffer for view in step.views)


def _without(copy: Copy, body: Sequence[Instruction]) -> list[Instruction]:
    """The body without the copy, whose source is computed in its destination."""

    def moved(view: View) -> View:
        is_source = view.buffer is copy.src.buffer
        return replace(view, buffer=copy.dst.buffer) if is_source else view

    return [step.mapped(moved) for step in body if step is not copy]


PROGRAM_PASSES: tuple[ProgramPass, ...] = (share_in_place, share_carried)


def optimize_program(program: Program) -> Program:
    """The same results from fewer buffers."""
    return run_in_order(program, PROGRAM_PASSES, verify_program)
