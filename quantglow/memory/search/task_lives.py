"""Lives of the temporaries in an order of tasks: those of the program that this order makes.

They are found without making it: a search judges thousands of orders by their plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from quantglow.instr.program import Buffer
from quantglow.memory.planner import Interval
from quantglow.memory.search.tasks import Step, Tasks


def lives(tasks: Tasks, order: Sequence[int]) -> list[Interval]:
    """The life of each temporary, in the order of ``dealloc`` instructions, numbered as these."""
    steps = [step for task in order for step in tasks.steps[task]]
    owners = _owners(steps)
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        for buffer in step.touched:
            owner = owners.get(buffer, buffer)
            first.setdefault(owner, at)
            last[owner] = at
    begins, ends = _numbered(len(steps), first, last)
    return [Interval(buffer, begins[buffer], end) for buffer, end in ends.items()]


def _owners(steps: Sequence[Step]) -> dict[Buffer, Buffer]:
    """The buffers in which results lie that take over another one."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        for buffer in step.touched:
            first.setdefault(buffer, at)
            last[buffer] = at
    found: dict[Buffer, Buffer] = {}
    for at, step in enumerate(steps):
        if step.out is None or first.get(step.out) != at:
            continue
        dying = next((buffer for buffer in step.replaces if last[buffer] == at), None)
        if dying is not None:
            found[step.out] = found.get(dying, dying)
    return found


def _numbered(
    count: int, first: dict[Buffer, int], last: dict[Buffer, int]
) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """Numbers of the ``alloc`` and ``dealloc`` instructions of buffers, those in their order."""
    opened = {at: list(group) for at, group in groupby(first, first.__getitem__)}
    closed: dict[int, list[Buffer]] = {}
    for buffer, at in last.items():
        closed.setdefault(at, []).append(buffer)
    begins: dict[Buffer, int] = {}
    ends: dict[Buffer, int] = {}
    number = 0
    for at in range(count):
        for buffer in opened.get(at, ()):
            begins[buffer] = number
            number += 1
        number += 1
        for buffer in closed.get(at, ()):
            ends[buffer] = number
            number += 1
    return begins, ends
