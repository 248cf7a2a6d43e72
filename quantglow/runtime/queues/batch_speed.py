"""Measured speed of batches: how many samples to run at once."""

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
    """The first one and powers of two: few runs show which of these is fastest."""
    return [size for size in sizes if size == sizes[0] or size & (size - 1) == 0]
