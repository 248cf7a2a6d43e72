"""Which calibration samples to keep in memory."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from quantglow.profiling.data import Feeds

Item = TypeVar("Item")


@dataclass
class Spread(Generic[Item]):
    """At most ``capacity`` of the items added, at even distances: every 1st, 2nd, 4th, … one.

    >>> spread = Spread(4)
    >>> spread.extend(range(10)).kept
    [0, 4, 8]
    """

    capacity: int
    kept: list[Item] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, item: Item) -> None:
        """Keep the item if its turn has come."""
        index, self.seen = self.seen, self.seen + 1
        if index % self.stride == 0 and len(self.kept) == self.capacity:
            self.kept, self.stride = self.kept[::2], 2 * self.stride
        if index % self.stride == 0 and len(self.kept) < self.capacity:
            self.kept.append(item)

    def extend(self, items: Iterable[Item]) -> Spread[Item]:
        """Add all items."""
        for item in items:
            self.add(item)
        return self


@dataclass
class Reservoir:
    """At most ``capacity`` of the samples added, as good as drawn at random: those whose contents
    have the lowest digests.

    So neither the order of the data nor its batches matter, and memory does not grow with them.
    ``seed`` draws others.
    """

    capacity: int
    seed: int = 0
    _ranked: list[tuple[bytes, int]] = field(default_factory=list)
    _samples: dict[int, Feeds] = field(default_factory=dict)
    _seen: int = 0

    @property
    def kept(self) -> list[Feeds]:
        """In the order in which they came."""
        return [self._samples[index] for index in sorted(self._samples)]

    def add(self, feeds: Feeds) -> None:
        """Keep the sample if it is among the lowest."""
        insort(self._ranked, (self._digest(feeds), self._seen))
        self._samples[self._seen] = feeds
        self._seen += 1
        if len(self._ranked) > self.capacity:
            del self._samples[self._ranked.pop()[1]]

    def extend(self, samples: Iterable[Feeds]) -> Reservoir:
        """Add all samples."""
        for feeds in samples:
            self.add(feeds)
        return self

    def _digest(self, feeds: Feeds) -> bytes:
        found = hashlib.blake2b(str(self.seed).encode(), digest_size=16)
        for name, array in sorted(feeds.items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return found.digest()
