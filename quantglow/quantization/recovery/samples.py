"""Which calibration samples to keep in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
