"""Calls that become one batch: their inputs one after the other along axis 0."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from quantglow.foreign_types import Array
from quantglow.lazy import cached_property


@dataclass(eq=False)
class Call:
    """A call that waits: its feeds, the outputs that it wants, and the second from which on it
    waits for others."""

    feeds: Mapping[str, Any]
    output_names: Sequence[str] | None
    arrived: float
    future: Future[list[Any]] = field(default_factory=Future)

    @cached_property
    def kind(self) -> Hashable:
        """Names, types and shapes of single samples; None for a call that joins no other."""
        arrays = [a for a in self.feeds.values() if isinstance(a, np.ndarray) and a.ndim and len(a)]
        if not arrays or len(arrays) < len(self.feeds) or len({len(a) for a in arrays}) > 1:
            return None
        return tuple(sorted((n, a.dtype.str, a.shape[1:]) for n, a in self.feeds.items()))

    @cached_property
    def samples(self) -> int:
        """Length of axis 0 of all inputs; 1 for a call that joins no other."""
        return 1 if self.kind is None else len(next(iter(self.feeds.values())))


def joined(calls: Sequence[Call]) -> dict[str, Array]:
    """The feeds of several calls of one kind as one batch."""
    return {name: np.concatenate([call.feeds[name] for call in calls]) for name in calls[0].feeds}


def parts(outputs: Mapping[str, Array], calls: Sequence[Call]) -> Iterator[list[Array]]:
    """The results of each call, from the outputs of their batch: copies, so that a result which is
    kept does not keep those of others."""
    bounds = accumulate((call.samples for call in calls), initial=0)
    for call, (begin, end) in zip(calls, pairwise(bounds), strict=True):
        names = outputs if call.output_names is None else call.output_names
        yield [outputs[name][begin:end].copy() for name in names]
