"""Loops as instructions: where carried, sliced and stacked values lie.

Carried values have buffers of their own: the first ones are copied there before the loop, the next
ones at the end of each trip.  Elements of sliced and stacked values are views that advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.graph.node import Node
from quantglow.instr.program import Copy, Instruction, View
from quantglow.ops.loop import Loop


@dataclass(frozen=True)
class LoopResults:
    """Places of the results of a loop: ``carried`` after the last trip, and ``stacked`` ones by
    the number of the result; those that nothing reads have none."""

    carried: tuple[View, ...]
    stacked: dict[int, View]

    def of(self, node: Loop) -> View:
        """The place of a result that is read."""
        found = self.stacked.get(node.output)
        return self.carried[node.output] if found is None else found


def siblings(node: Loop, nodes: Sequence[Node]) -> list[Loop]:
    """The nodes that are results of the same loop, with ``node``."""
    return [
        other
        for other in nodes
        if isinstance(other, Loop)
        and other.body is node.body
        and (other.operands, other.trips) == (node.operands, node.trips)
    ]


def handed_over(results: Sequence[View], carried: Sequence[View]) -> list[int]:
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
