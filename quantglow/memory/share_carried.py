"""Carried values of loops in place: the next one is computed right where the last one lies."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from quantglow.instr.lifetimes import with_lifetimes
from quantglow.instr.program import (
    Alloc,
    Buffer,
    Compute,
    Copy,
    Dealloc,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.memory.share import in_place_candidates, interchangeable
from quantglow.pass_manager import declined


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
        changed[index] = _shared(changed[index], outside | others)
    return changed


def _buffers(steps: Sequence[Instruction]) -> set[Buffer]:
    return {view.buffer for step in steps for view in step.views}


def _shared(loop: Instruction, outside: Set[Buffer]) -> Instruction:
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
    if src.advance or dst.advance or not interchangeable(src, dst) or len(writers) != 1:
        return False
    made = body[writers[0]]
    old = {i for i, step in enumerate(body) if _touches(step, dst.buffer)} - {end}
    if not isinstance(made, Compute) or made.output != src or end < max(old, default=end):
        return False
    if max(old, default=-1) > writers[0] or any(_writes(body[i], dst.buffer) for i in old):
        declined(dst.buffer.name, "its old value is read later")
        return False
    return writers[0] not in old or _in_place(made, dst)


def _in_place(made: Compute, dst: View) -> bool:
    """Whether a step may write its result over this operand."""
    read = [view for view in made.inputs if view.buffer is dst.buffer]
    allowed = in_place_candidates(made)
    return all(view in allowed and interchangeable(view, made.output) for view in read)


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
