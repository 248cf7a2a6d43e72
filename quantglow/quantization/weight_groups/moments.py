"""Second moments of the inputs of products over samples, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter import interpret
from quantglow.profiling.data import Feeds

MOST_NBYTES = 2**30
"""Size of the moments that are kept at the same time; for more the samples run again."""


def input_moments(
    depths: Mapping[str, int], samples: Sequence[Feeds], graph_of: Callable[[Feeds], Graph]
) -> Iterator[dict[str, Array]]:
    """float32 [K, K] for values by name, as many at once as memory has room for.

    ``depths``: the values that are wanted, and the lengths K of their last axes; those that no
    graph has are left out.  ``graph_of``: the graph that runs a sample.
    """
    for names in batches(depths):
        found = _Moments(frozenset(names))
        for feeds in samples:
            interpret(graph_of(feeds), feeds, [found.add])
        yield found.sums


@dataclass(frozen=True)
class _Moments:
    """Sums of the outer products of rows, for some values."""

    names: frozenset[str]
    sums: dict[str, Array] = field(default_factory=dict)

    def add(self, node: Node, value: Array) -> None:
        """A listener of the interpreter.  Values that are not finite say nothing."""
        if node.name not in self.names:
            return
        rows = value.reshape(-1, value.shape[-1]).astype(np.float32, copy=False)
        if node.name not in self.sums:
            self.sums[node.name] = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
        if np.isfinite(rows).all():
            self.sums[node.name] += rows.T @ rows


def batches(depths: Mapping[str, int]) -> Iterator[list[str]]:
    """Names in order, cut where their moments need too much memory."""
    names: list[str] = []
    nbytes = 0
    for name, depth in depths.items():
        own = 4 * depth * depth
        if names and nbytes + own > MOST_NBYTES:
            yield names
            names, nbytes = [], 0
        names.append(name)
        nbytes += own
    if names:
        yield names
