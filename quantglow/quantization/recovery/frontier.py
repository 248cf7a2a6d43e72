"""The values of a graph for all samples at once, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.profiling.data import Feeds
from quantglow.types import Array


@dataclass
class Frontier:
    """Values by name, one for each sample, as long as some reader waits for them.

    Nodes may be others than those of ``graph``, if they keep the names.
    """

    graph: Graph
    samples: list[Feeds]
    values: dict[str, list[Array]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            self.waiting.update(operand.name for operand in node.operands)

    def value(self, node: Node, sample: int) -> Array:
        """The value of a node that was kept."""
        return node.value if isinstance(node, Constant) else self.values[node.name][sample]

    def compute(self, node: Node) -> Iterator[Array]:
        """The value of ``node`` for each sample, from the kept values of its operands."""
        for sample, feeds in enumerate(self.samples):
            if isinstance(node, Input):
                yield np.asarray(feeds[node.name])
            else:
                yield node.evaluate(*(self.value(operand, sample) for operand in node.operands))

    def keep(self, node: Node, values: list[Array]) -> None:
        """Store the values of a node, and free those it was the last to read."""
        if self.waiting[node.name]:
            self.values[node.name] = values
        for operand in node.operands:
            self.waiting[operand.name] -= 1
            if not self.waiting[operand.name]:
                self.values.pop(operand.name, None)


def peak_nbytes(graph: Graph) -> int:
    """Bytes of all values of one sample that are alive together, at most."""
    waiting = Counter(graph.use_counts)
    live = peak = 0
    for node in graph.nodes:
        if isinstance(node, Constant):
            continue
        live += node.type.nbytes
        peak = max(peak, live)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand] and not isinstance(operand, Constant):
                live -= operand.type.nbytes
    return peak
