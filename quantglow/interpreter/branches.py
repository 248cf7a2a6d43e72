"""Branches that a single condition leaves out: a run computes their values in vain.

Both branches of an If whose condition is known at run time only are computed, with a Where behind
them (see ``importer.onnx.operators.controlflow.subgraphs``; compiled models skip large ones, see
``transforms.partition``).  The one that is not taken may divide by zero or take the root of a
negative number: its values mean nothing, and no statistics should include them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node, ancestors
from quantglow.ir.ops import Where
from quantglow.support.arrays import Array

Listener = Callable[[Node, Array], None]


@dataclass(frozen=True, eq=False)
class Branch:
    """The nodes that no output needs unless ``condition`` is ``outcome``."""

    condition: Node
    outcome: bool
    nodes: frozenset[Node]


def find_branches(graph: Graph) -> list[Branch]:
    """The branches of every single condition that chooses between values."""
    readers: dict[Node, list[Where]] = defaultdict(list)
    for node in graph.nodes:
        if isinstance(node, Where) and node.condition.type.is_single:
            readers[node.condition].append(node)
    branches = []
    for condition, chosen in readers.items():
        for outcome in (True, False):
            if nodes := _only_behind(graph, chosen, outcome):
                branches.append(Branch(condition, outcome, nodes))
    return branches


def _only_behind(graph: Graph, chosen: Sequence[Where], outcome: bool) -> frozenset[Node]:
    """The nodes that no output needs if none of the ``chosen`` nodes takes its x (``outcome``), or
    its y.
    """
    ends = [node for _, node in graph.outputs]
    needed = ancestors(ends, {n: (n.condition, n.y if outcome else n.x) for n in chosen})
    computed = ancestors(n.x if outcome else n.y for n in chosen)
    return frozenset(n for n in computed - needed if not isinstance(n, Input | Constant))


def in_branches(graph: Graph) -> frozenset[Node]:
    """The nodes of all branches: some runs compute them in vain."""
    return frozenset[Node]().union(*(branch.nodes for branch in find_branches(graph)))


def listen_to_taken(graph: Graph, listener: Listener) -> Listener:
    """A listener of one run that passes on values of taken branches only, once these are known."""
    branches = find_branches(graph)
    return _Taken(branches, listener) if branches else listener


@dataclass
class _Taken:
    branches: list[Branch]
    listener: Listener
    waiting: dict[Node, Array] = field(default_factory=dict)
    values: dict[Node, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asked = {branch.condition for branch in self.branches}
        self.around: dict[Node, list[Branch]] = defaultdict(list)
        for branch in self.branches:
            for node in branch.nodes:
                self.around[node].append(branch)

    def __call__(self, node: Node, value: Array) -> None:
        self._pass_on(node, value)
        if node in self.asked:
            self.values[node] = bool(value.reshape(()))
            waiting, self.waiting = self.waiting, {}
            for other, pending in waiting.items():
                self._pass_on(other, pending)

    def _pass_on(self, node: Node, value: Array) -> None:
        """Call the listener if all branches around the node are taken; drop the value if one is
        not.
        """
        around = self.around.get(node, [])
        if any(self.values.get(b.condition, b.outcome) != b.outcome for b in around):
            return
        if all(branch.condition in self.values for branch in around):
            self.listener(node, value)
        else:
            self.waiting[node] = value
