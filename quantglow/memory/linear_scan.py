"""Memory plans in the order of execution, for programs with too many buffers to compare in pairs.

A buffer takes the smallest gap that holds it, and gives it back when it dies: n log n steps.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Gaps:
    """The free ranges of an arena of ``nbytes``."""

    nbytes: int
    sizes: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    """The start of the gap that ends at an offset."""
    by_size: list[tuple[int, int]] = field(default_factory=list)
    """(size, start), sorted."""

    def __post_init__(self) -> None:
        self._add(0, self.nbytes)

    def take(self, nbytes: int) -> int:
        """The start of the smallest gap that holds so many bytes, which are taken from it."""
        size, start = self.by_size[bisect_left(self.by_size, (nbytes, 0))]
        self._remove(start)
        if size > nbytes:
            self._add(start + nbytes, size - nbytes)
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Give a range back; it joins the gaps beside it."""
        if (after := start + nbytes) in self.sizes:
            nbytes += self._remove(after)
        if (before := self.starts.get(start)) is not None:
            start, nbytes = before, nbytes + self._remove(before)
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        self.sizes[start], self.starts[start + nbytes] = nbytes, start
        insort(self.by_size, (nbytes, start))

    def _remove(self, start: int) -> int:
        """Forget a gap; its size."""
        nbytes = self.sizes.pop(start)
        del self.starts[start + nbytes]
        del self.by_size[bisect_left(self.by_size, (nbytes, start))]
        return nbytes


def scan(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """An offset for each (begin, end, nbytes), both ends included."""
    gaps, offsets = Gaps(sum(nbytes for *_, nbytes in lives)), [0] * len(lives)
    dying: list[tuple[int, int]] = []
    for index in sorted(range(len(lives)), key=lambda i: lives[i][0]):
        begin, end, nbytes = lives[index]
        while dying and dying[0][0] < begin:
            dead = heapq.heappop(dying)[1]
            gaps.give(offsets[dead], lives[dead][2])
        if nbytes:
            offsets[index] = gaps.take(nbytes)
            heapq.heappush(dying, (end, index))
    return offsets
