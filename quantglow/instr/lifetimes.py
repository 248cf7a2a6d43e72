"""Lifetimes of buffers: first and last uses, marked by ``alloc`` and ``dealloc``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from quantglow.instr.program import Alloc, Buffer, BufferKind, Dealloc, Instruction


def first_uses(steps: Sequence[Instruction]) -> dict[Buffer, int]:
    """The index of the first instruction that touches each buffer."""
    found: dict[Buffer, int] = {}
    for index, step in enumerate(steps):
        for view in step.views:
            found.setdefault(view.buffer, index)
    return found


def last_uses(steps: Sequence[Instruction]) -> dict[Buffer, int]:
    """The index of the last instruction that touches each buffer."""
    return {view.buffer: index for index, step in enumerate(steps) for view in step.views}


def with_lifetimes(steps: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Insert ``alloc`` before the first use of each temporary and ``dealloc`` after the last."""
    begins, ends = _by_index(first_uses(steps)), _by_index(last_uses(steps))
    result: list[Instruction] = []
    for index, step in enumerate(steps):
        result.extend(map(Alloc, begins[index]))
        result.append(step)
        result.extend(map(Dealloc, ends[index]))
    return tuple(result)


def _by_index(where: dict[Buffer, int]) -> defaultdict[int, list[Buffer]]:
    """The temporaries among the buffers, by instruction."""
    grouped: defaultdict[int, list[Buffer]] = defaultdict(list)
    for buffer, index in where.items():
        if buffer.kind is BufferKind.TEMP:
            grouped[index].append(buffer)
    return grouped
