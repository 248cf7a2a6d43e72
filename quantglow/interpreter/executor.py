"""Executor of graphs: computes nodes in order, frees dead values, shows loops to listeners.

Values may be of any kind.  ``evaluate`` computes the value of a node from those of its operands:

============================== ===================================================================
``interpret``                  an array
fake quantization              a pair: the real value, and the one rounded as it will be stored
sensitivity                    the changed values, or None where the change does not reach
several samples at once        arrays of samples stacked along axis 0 (``stacks``)
============================== ===================================================================

So a value is transformed in ``evaluate``, looked at by iterating, kept by naming it in ``ends``,
and a run starts in the middle at a ``ExecutionState``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, ancestors
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.loop import Loop
from quantglow.support.arrays import Array

Value = TypeVar("Value")
Evaluate = Callable[[Node, Sequence[Value]], Value]
"""Computes the value of a node from those of its operands."""

Listener = Callable[[Node, Array], None]


@dataclass(frozen=True)
class ExecutionState(Generic[Value]):
    """The start of a run: the position of the next node, and the values it and later ones read."""

    position: int
    values: Mapping[Node, Value]


@dataclass
class Execution(Generic[Value]):
    """One run of a graph.

    - Order: each node is evaluated once, in the order of the graph; with ``only`` some nodes, and
      what they are computed from.  A run from a ``ExecutionState``, of one with the same ``only``
      and ends, begins at its position; Constants before that are evaluated first, so it need not
      hold them.
    - Memory: a value is freed when its last reader has been evaluated.  Values of ``ends`` stay.
    - Threads: the run belongs to one thread at a time.  Runs share nothing, so any number may go on
      side by side (``workers.each``), and ``evaluate`` may use threads of its own.
    - Errors: an exception of ``evaluate`` ends the run and reaches the caller unchanged.
    """

    graph: Graph
    ends: Sequence[Node]
    evaluate: Evaluate[Value]
    start: InitVar[ExecutionState[Value] | None] = None
    only: InitVar[Iterable[Node] | None] = None
    position: int = field(default=0, init=False)
    live: dict[Node, Value] = field(default_factory=dict, init=False)
    """Values that a later node reads, and those of ``ends``."""
    idle: Set[Node] = field(default_factory=set, init=False)
    """Nodes that are not evaluated."""
    reads: dict[Node, int] = field(default_factory=dict, init=False)
    """How often the nodes that are left read a value; ends count once more."""

    def __post_init__(
        self, start: ExecutionState[Value] | None, only: Iterable[Node] | None
    ) -> None:
        nodes = self.graph.nodes
        needed = nodes if only is None else ancestors(chain(only, self.ends))
        self.idle = set() if only is None else {*nodes} - {*needed}
        self.reads = dict.fromkeys(nodes, 0)
        for node in chain.from_iterable(node.operands for node in needed):
            self.reads[node] += 1
        for node in self.ends:
            self.reads[node] += 1
        if start is not None:
            self._begin(start)

    def _begin(self, start: ExecutionState[Value]) -> None:
        self.position, self.live = start.position, dict(start.values)
        before = [n for n in self.graph.nodes[: start.position] if n not in self.idle]
        for operand in chain.from_iterable(node.operands for node in before):
            self.reads[operand] -= 1
        for node in before:
            if isinstance(node, Constant) and self.reads[node]:
                self.live[node] = self.evaluate(node, ())

    def __iter__(self) -> Iterator[tuple[Node, Value]]:
        """Evaluate the nodes that are left, and give each with its value."""
        nodes, live, reads, evaluate = self.graph.nodes, self.live, self.reads, self.evaluate
        idle = self.idle
        while self.position < len(nodes):
            node = nodes[self.position]
            if node in idle:
                self.position += 1
                continue
            operands = node.operands
            value = evaluate(node, [live[operand] for operand in operands])
            self.position += 1
            if reads[node]:
                live[node] = value
            for operand in operands:
                reads[operand] -= 1
                if not reads[operand]:
                    del live[operand]
            yield node, value

    def run(self) -> list[Value]:
        """Evaluate the nodes that are left.  Returns the values of ``ends``, in their order."""
        for _ in self:
            pass
        return [self.live[node] for node in self.ends]

    @property
    def state(self) -> ExecutionState[Value]:
        """The values that are alive now, but for Constants."""
        values = {node: v for node, v in self.live.items() if not isinstance(node, Constant)}
        return ExecutionState(self.position, values)


def peak_nbytes(graph: Graph) -> int:
    """Maximum size of all values of one sample that are alive together, in bytes."""

    def nbytes_of(node: Node, _: Sequence[int]) -> int:
        return 0 if isinstance(node, Constant) else int(node.type.nbytes)

    execution = Execution(graph, [node for _, node in graph.outputs], nbytes_of)
    peak = before = 0
    for _, nbytes in execution:
        peak = max(peak, before + nbytes)
        before = sum(execution.live.values())
    return peak


def multiplied_values(body: Graph) -> tuple[Node, ...]:
    """The computed values that products with constant weights read."""
    layers = (n for n in body.nodes if isinstance(n, Contraction) and isinstance(n.w, Constant))
    return tuple(dict.fromkeys(layer.x for layer in layers if not isinstance(layer.x, Constant)))


@dataclass
class Watched:
    """Shows the values of each body once in a run, whatever the number of results of its loop."""

    listeners: Sequence[Listener]
    visited: set[Graph] = field(default_factory=set)

    def value(self, node: Loop, operands: Sequence[Array]) -> Array:
        """The value of a loop; listeners see what is multiplied in its body, if it is finite."""
        factors = () if node.body in self.visited else multiplied_values(node.body)
        self.visited.add(node.body)
        if not factors:
            return node.evaluate(*operands)
        trips: list[list[Array]] = []

        def watch(values: Mapping[Node, Array]) -> None:
            trips.append([values[x] for x in factors])

        with np.errstate(all="ignore"):
            result = np.asarray(node.watched(operands, watch))
        for x, arrays in zip(factors, zip(*trips, strict=True), strict=bool(trips)):
            stacked = np.stack(arrays)
            if np.isfinite(stacked).all():
                for listener in self.listeners:
                    listener(x, stacked)
        return result
