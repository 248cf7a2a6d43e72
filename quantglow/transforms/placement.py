"""Placement: the executor of each operator, by modelled time with the transfer of values counted.

The cost of a placement is the time of all operators, and for each value and each other executor
that reads it the transfer: what it takes the executor that gives the value, and the one that reads
it.  Inputs and outputs of the graph are the host's, whose transfer is free.

Between two executors the cheapest placement is a minimum cut (Boykov, Veksler, Zabih, "Fast
Approximate Energy Minimization via Graph Cuts", 2001); among more of them pairs are solved in turn,
as in swap moves there, as long as the cost goes down.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node

HOST = -1
"""Executor of the inputs and outputs of a graph."""

SOURCE, SINK = "source", "sink"
UNITS = 2**30
"""Sum of all capacities of a network: those of SciPy are int32."""

Positions = Mapping[Node, int]
"""The executor of each operator."""


@dataclass(frozen=True)
class Costs:
    """Seconds of an operator by an executor, and those that it takes an executor to give a value
    or to read it."""

    time: Callable[[Node, int], float]
    transfer: Callable[[Node, int], float]

    def total(self, graph: Graph, positions: Positions) -> float:
        """The cost of a placement."""
        seconds = sum(self.time(node, position) for node, position in positions.items())
        for value, readers in _values(graph):
            giver = _executor(value, positions)
            for reader in {_executor(node, positions) for node in readers} - {giver}:
                seconds += self.crossing(value, giver, reader)
        return seconds

    def crossing(self, value: Node, giver: int, reader: int) -> float:
        """Seconds of a value from one executor to another."""
        return sum(self.transfer(value, position) for position in (giver, reader) if position >= 0)


def _executor(node: Node | None, positions: Positions) -> int:
    """The executor of an operator; the host for others, and for None."""
    return HOST if node is None else positions.get(node, HOST)


def _values(graph: Graph) -> Iterable[tuple[Node, set[Node | None]]]:
    """The values of a graph, and their readers: None for the host."""
    ends = {node for _, node in graph.outputs}
    for value in (*graph.inputs, *graph.compute_nodes()):
        readers: set[Node | None] = {None} if value in ends else set()
        yield value, readers.union(graph.users[value])


def place(graph: Graph, choices: Mapping[Node, Sequence[int]], costs: Costs) -> dict[Node, int]:
    """The executor of each operator among its ``choices``, the preferred one first: of two
    executors the cheapest placement, else one that costs no more than the preferred ones."""
    positions = {node: executors[0] for node, executors in choices.items()}
    pairs = {pair for executors in choices.values() for pair in combinations(executors, 2)}
    least, is_better = costs.total(graph, positions), bool(pairs)
    while is_better:
        is_better = False
        for pair in sorted(pairs):
            candidate = _swap(graph, choices, costs, positions, pair)
            if (seconds := costs.total(graph, candidate)) < least:
                positions, least, is_better = candidate, seconds, True
    return positions


def _swap(
    graph: Graph,
    choices: Mapping[Node, Sequence[int]],
    costs: Costs,
    positions: Positions,
    pair: tuple[int, int],
) -> dict[Node, int]:
    """The cheapest placement that differs only in which of a pair has its operators: on the side
    of the sink those of the first one, which is preferred where costs are equal."""
    network, (first, second) = _Network(), pair
    begin: Hashable
    end: Hashable
    members = {node for node, position in positions.items() if position in pair}
    if not members:
        return dict(positions)
    for node in members:
        for executor, begin, end in ((first, SOURCE, node), (second, node, SINK)):
            can = executor in choices[node]
            network.add(begin, end, costs.time(node, executor) if can else math.inf)
    for value, readers in _values(graph):
        inner = [node for node in readers if node in members]
        giver, begin, end = _executor(value, positions), SOURCE, SINK
        to_first, to_second = (costs.crossing(value, giver, executor) for executor in pair)
        if value in members:
            begin = end = value
            to_first = to_second = costs.crossing(value, first, second)
            for reader in {_executor(node, positions) for node in readers if node not in members}:
                network.add(SOURCE, value, costs.crossing(value, first, reader))
                network.add(value, SINK, costs.crossing(value, second, reader))
        # One crossing, however many operators of an executor read the value.
        for node in inner:
            network.add((value, first), node, math.inf)
            network.add(node, (value, second), math.inf)
        if inner:
            network.add(begin, (value, first), to_first)
            network.add((value, second), end, to_second)
    sources = network.source_side()
    return {
        node: position if node not in members else second if node in sources else first
        for node, position in positions.items()
    }


@dataclass
class _Network:
    """A network of capacities, in seconds, between vertices of any kind."""

    capacities: dict[tuple[Hashable, Hashable], float] = field(
        default_factory=lambda: defaultdict(float)
    )

    def add(self, begin: Hashable, end: Hashable, seconds: float) -> None:
        """Add an edge, or capacity to it."""
        self.capacities[begin, end] += seconds

    def source_side(self) -> set[Hashable]:
        """The vertices on the side of the source of the minimum cut that has the fewest there."""
        # Only here: most graphs have one executor that says what it costs.
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        names = dict.fromkeys((SOURCE, SINK, *(end for ends in self.capacities for end in ends)))
        numbers = {name: number for number, name in enumerate(names)}
        total = sum(seconds for seconds in self.capacities.values() if seconds < math.inf)
        scale = UNITS / total if total else 0.0
        units = [UNITS + 1 if c == math.inf else round(c * scale) for c in self.capacities.values()]
        ends = np.array([[numbers[a], numbers[b]] for a, b in self.capacities]).T
        shape = len(numbers), len(numbers)
        network = coo_array((np.array(units, np.int32), tuple(ends)), shape=shape).tocsr()
        residual = network - maximum_flow(network, 0, 1).flow
        residual.data = np.where(residual.data > 0, 1, 0)
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, 0, return_predecessors=False)
        return {list(names)[number] for number in reached}
