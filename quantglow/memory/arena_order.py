"""Offsets of buffers that keep their order in the arena, whatever their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.concise import Concise

ALIGNMENT = 64
"""Alignment of buffers in bytes: a cache line, and the widest vector."""


@dataclass(frozen=True, repr=False)
class ArenaOrder(Concise):
    """``below``: for each buffer the earlier ones that it lies above, by position."""

    below: tuple[tuple[int, ...], ...]

    def offsets(self, nbytes: Sequence[int]) -> tuple[list[int], int]:
        """The offset of each buffer, and the size of the arena, where they have these sizes."""
        ends: list[int] = []
        found: list[int] = []
        for size, below in zip(nbytes, self.below, strict=True):
            at = 0
            for other in below:
                if ends[other] > at:
                    at = ends[other]
            found.append(at)
            ends.append(at + size)
        return found, max(ends, default=0)
