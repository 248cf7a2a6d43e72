"""Which calibration samples to keep in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def spread(items: Iterable[Item], capacity: int) -> list[Item]:
    """At most ``capacity`` items at even distances: every 1st, 2nd, 4th, … one.

    >>> spread(range(10), 4)
    [0, 4, 8]
    """
    kept: list[Item] = []
    stride = 1
    for index, item in enumerate(items):
        if index % stride:
            continue
        if len(kept) == capacity:
            kept, stride = kept[::2], 2 * stride
            if index % stride:
                continue
        kept.append(item)
    return kept
