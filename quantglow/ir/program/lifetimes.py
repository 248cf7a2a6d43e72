"""Lifetimes of buffers, marked by ``alloc`` and ``dealloc``, and values of loops by trip.

Carried values have buffers of their own: the first ones are copied there before the loop, the next
ones at the end of each trip.  Elements of sliced and stacked values are views that advance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.ir.graph.node import Node
from quantglow.ir.ops.loop import Loop
from quantglow.ir.program.program import Alloc, Buffer, BufferKind, Copy, Dealloc, Instruction, View
from quantglow.ir.symbolic.size import decide


def first_uses(steps: Sequence[Instruction]) -> dict[Buffer, int]:
    """The index of the first instruction that touches each buffer."""
    uses: dict[Buffer, int] = {}
    for index, step in enumerate(steps):
        for view in step.views:
            uses.setdefault(view.buffer, index)
    return uses


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


@dataclass(frozen=True)
class LoopResults:
    """Places of the results of a loop: ``carried`` after the last trip, and ``stacked`` ones by
    the number of the result; those that nothing reads have none."""

    carried: tuple[View, ...]
    stacked: dict[int, View]

    def of(self, node: Loop) -> View:
        """The place of a result that is read."""
        view = self.stacked.get(node.output)
        return self.carried[node.output] if view is None else view


def siblings(node: Loop, nodes: Sequence[Node]) -> list[Loop]:
    """The nodes that are results of the same loop, with ``node``."""
    return [
        other
        for other in nodes
        if isinstance(other, Loop)
        and other.body is node.body
        and other.operands == node.operands
        and decide(other.trips == node.trips)
    ]


def hand_over(results: Sequence[View], carried: Sequence[View]) -> list[int]:
    """Positions of the next carried values that lie in the buffer of another one, which the copies
    at the end of a trip would overwrite."""
    owners = [view.buffer for view in carried]
    return [
        position
        for position, (result, place) in enumerate(zip(results, carried, strict=True))
        if result.buffer in owners and not result.is_at(place)
    ]


def copies(results: Sequence[View], carried: Sequence[View]) -> list[Instruction]:
    """The copies at the end of a trip; a value that stays needs none."""
    pairs = zip(results, carried, strict=True)
    return [Copy(result, place) for result, place in pairs if not result.is_at(place)]
