"""Cuts a graph into segments, one backend each.

Every node goes to the first backend that supports it.  A node's level counts the changes of
backend on the way to it; the nodes of one level and one backend are a segment.  A value that
crosses a border goes to a later level, so segments never wait for each other in a circle; and no
path changes its backend more often than the preferences ask for.  Then nodes move to later levels
where fewer bytes cross borders so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quantglow.errors import BackendError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.runtime.protocol import Backend

Key = tuple[int, int]
"""Level, and position of the backend in the order of preference."""


@dataclass(frozen=True)
class Segment:
    """A part of a graph and who compiles it.  Its inputs and outputs are called as the nodes whose
    values they are."""

    backend: Backend
    graph: Graph
    nodes: tuple[Node, ...]


def partition(graph: Graph, backends: Sequence[Backend]) -> tuple[Segment, ...]:
    """Segments in an order in which they can run.  Raises ``BackendError``."""
    owners = {node: owner(node, backends) for node in graph.compute_nodes()}
    levels = _Levels(graph, owners)
    levels.sink()
    members: dict[Key, list[Node]] = {}
    for node in owners:
        members.setdefault(levels.key(node), []).append(node)
    return tuple(
        Segment(backends[key[1]], cut_out(graph, members[key]), tuple(members[key]))
        for key in sorted(members)
    )


def owner(node: Node, backends: Sequence[Backend]) -> int:
    """The position of the first backend that supports the node."""
    for position, backend in enumerate(backends):
        if backend.supports(node):
            return position
    names = ", ".join(backend.name for backend in backends)
    raise BackendError(f"no backend supports {node!r}. Remedy: add one that does to {names}.")


@dataclass
class _Levels:
    graph: Graph
    owners: Mapping[Node, int]
    levels: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """As early as operands allow."""
        for node, own in self.owners.items():
            ready = (self.levels[o] + (self.owners[o] != own) for o in self.sources(node))
            self.levels[node] = max(ready, default=0)
        self.sizes = Counter(map(self.key, self.owners))
        self.outputs = {node for _, node in self.graph.outputs}

    def sources(self, node: Node) -> list[Node]:
        return [o for o in node.operands if o in self.owners]

    def key(self, node: Node) -> Key:
        return self.levels[node], self.owners[node]

    def sink(self) -> None:
        """Move nodes as late as their readers allow, last ones first, where that does not make
        more bytes cross borders."""
        for node in reversed(tuple(self.owners)):
            target = self.latest(node)
            if target is not None and self.saved(node, target) >= self.added(node):
                self.sizes[self.key(node)] -= 1
                self.levels[node] = target
                self.sizes[self.key(node)] += 1

    def latest(self, node: Node) -> int | None:
        """A later level for the node: that of its readers, or one where its backend works too."""
        users, own = self.graph.users[node], self.owners[node]
        if not users or node in self.outputs:
            return None
        limit = min(self.levels[u] - (self.owners[u] != own) for u in users)
        if limit == self.levels[node]:
            return None
        if all(self.owners[u] == own for u in users):
            return limit
        later = range(limit, self.levels[node], -1)
        return next((level for level in later if self.sizes[level, own]), None)

    def saved(self, node: Node, level: int) -> int:
        """Bytes of the result that would no longer cross a border."""
        there = all(self.key(u) == (level, self.owners[node]) for u in self.graph.users[node])
        return node.type.nbytes if there else 0

    def added(self, node: Node) -> int:
        """Bytes of operands that would cross a border only then."""
        own = self.key(node)
        return sum(
            o.type.nbytes
            for o in dict.fromkeys(self.sources(node))
            if self.key(o) == own and all(self.key(u) == own for u in self.graph.users[o])
        )


def cut_out(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """The nodes as a graph of their own; what they read from outside becomes its inputs."""
    inside: dict[Node, Node] = {}
    inputs: dict[Node, Input] = {}
    for node in nodes:
        operands = []
        for operand in node.operands:
            if operand not in inside and not isinstance(operand, Constant):
                inputs.setdefault(operand, placeholder(operand))
            operands.append(inside.get(operand) or inputs.get(operand) or operand)
        inside[node] = node.with_operands(tuple(operands))
    outputs = {node for _, node in graph.outputs}
    given = [
        (node.name, made)
        for node, made in inside.items()
        if node in outputs or any(user not in inside for user in graph.users[node])
    ]
    return Graph(tuple(inputs.values()), tuple(given), graph.source_hash)


def placeholder(node: Node) -> Input:
    return node if isinstance(node, Input) else Input(name=node.name, tensor=node.type)
