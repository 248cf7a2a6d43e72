"""Measured speed of batches: how many samples to run at once, and which calls are no batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

TRIALS = 3
"""Runs after which the speed of a size is known.  The first one may compile a program."""

MOST_KINDS = 256
"""Kinds of calls whose speed is remembered."""


@dataclass
class BatchSpeed:
    """The fastest run of each number of samples of each kind, in seconds for each sample."""

    _runs: dict[Hashable, dict[int, list[float]]] = field(default_factory=dict)
    _joins: dict[Hashable, bool] = field(default_factory=dict)

    def joins(self, kind: Hashable) -> bool | None:
        """Whether calls of a kind may be joined; None: it is not known."""
        return self._joins.get(kind)

    def note(self, kind: Hashable, joins: bool) -> None:
        """Note whether calls of a kind may be joined."""
        if kind not in self._joins and len(self._joins) == MOST_KINDS:
            self._joins.clear()
        self._joins[kind] = joins

    def record(self, kind: Hashable, samples: int, seconds: float) -> None:
        """Note a run of calls of a kind."""
        if kind not in self._runs and len(self._runs) == MOST_KINDS:
            self._runs.clear()
        known = self._runs.setdefault(kind, {}).setdefault(samples, [])
        known.append(seconds / samples)
        known.sort()
        del known[TRIALS:]

    def best(self, kind: Hashable, sizes: Sequence[int]) -> int:
        """The size to run: the smallest that was not run often enough, else the fastest.

        ``sizes``: possible numbers of samples, in ascending order.
        """
        runs, tried = self._runs.get(kind, {}), sizes_tried(sizes)
        unknown = [size for size in tried if len(runs.get(size, ())) < TRIALS]
        return unknown[0] if unknown else min(tried, key=lambda size: runs[size][0])


def sizes_tried(sizes: Sequence[int]) -> list[int]:
    """Powers of two, and these times the first one: few runs show which of them is fastest."""
    first = max(sizes[0], 1)
    return [
        size
        for size in sizes
        if is_power_of_two(size) or (size % first == 0 and is_power_of_two(size // first))
    ]


def is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
