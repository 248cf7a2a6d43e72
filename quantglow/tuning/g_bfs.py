"""Greedy best-first search of Zhang, Cheng, Zang and Park 2019 (arXiv:1909.10616)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from quantglow.tuning.searchers import Searcher, Space

RHO = 5
"""Neighbours of a state that are measured, as in the paper."""


class GBFS(Searcher):
    """Greedy best-first search: ``rho`` random neighbours of the fastest state not yet expanded.

    Where the queue is empty, it goes on at a random state: the paper's would end.
    """

    def __init__(self, space: Space, seed: int = 0, start: int = 0, rho: int = RHO) -> None:
        super().__init__(space, seed, start)
        self.rho = rho
        self.queue: list[tuple[float, int]] = []
        self.waiting = [start]

    def proposals(self) -> Iterator[int]:
        pending = self.pending
        while True:
            while self.waiting:
                yield self.waiting.pop()
            if self.queue:
                _, state = heapq.heappop(self.queue)
                near = [end for end in self.space.neighbors(state) if end not in self.asked]
                self.waiting = self.rng.permutation(near).tolist()[: self.rho]
            elif pending:
                return  # states whose times are not told yet will be expanded first
            else:
                self.waiting = [self.random_state()]

    def tell(self, state: int, seconds: float) -> None:
        super().tell(state, seconds)
        if seconds < math.inf:
            heapq.heappush(self.queue, (seconds, state))
