"""Partition of a graph among code generators, and the interface of one.

Every node goes to the first backend that supports it; where that one and others say what they cost,
to the cheapest for the whole graph (``placement``).  A node's level counts the changes of backend
on the way to it; the nodes of one level and one backend are a segment.  A value that crosses a
border goes to a later level, so segments never wait for each other in a circle, and no path changes
its backend more often than the preferences demand.  Then nodes move to later levels if fewer bytes
cross borders that way.

A program computes both branches of a condition and selects.  That is faster for small branches,
because changing from one program to another takes time.  Nodes that only one branch of a large one
needs have segments of their own, which run if the branch is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from typing import Protocol, runtime_checkable

from quantglow.interpreter.branches import Branch, find_branches
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.external import External
from quantglow.ir.ops.work import count_macs
from quantglow.ir.symbolic.size import Dim, decide, likely
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError
from quantglow.transforms.placement import Costs, place
from quantglow.transforms.size_sources import SizeSource, late_sizes


class Executable(Protocol):
    """A compiled segment.  ``run`` may be called from several threads at once."""

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """One array for each output, in order, of exactly its type.

        ``feeds`` (input name -> array) are known to match the inputs; they may be views of the
        caller's arrays and must not be written to.  The returned arrays must not be written later.
        """


@runtime_checkable
class Backend(Protocol):
    """A code generator: the nodes that it supports, and their compilation."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def supports(self, node: Node) -> bool:
        """Whether it can compute this node: its class, types, shapes, constant operands.

        Asked for each operator of the optimized graph (float or int8), never for Inputs and
        Constants.
        """

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """Compile a segment: all its operators are supported, its inputs and outputs are the values
        that cross its border, under their names.
        """


@runtime_checkable
class TimedBackend(Backend, Protocol):
    """A backend that says what it costs: nodes that several of them support go to the one with
    which the graph takes the least time.  The integers are the same."""

    @property
    def transfer(self) -> tuple[float, float]:
        """Seconds for each value that it reads from other backends or gives them, and seconds for
        each byte of the value."""

    def time(self, node: Node) -> float:
        """Seconds of a node that it supports, modelled or measured."""


LEAST_OPERATIONS = 12_000_000
"""Minimum number of operations, in float, of a branch with programs of its own: they take some
130 microseconds, and two more programs 120."""

INT8_TIMES = 4
"""Number of int8 multiplications in the time of one in float32."""


def branches_apart(graph: Graph) -> list[Branch]:
    """The large branches of a graph."""
    candidates = ((b, sum(map(_operations, b.nodes))) for b in find_branches(graph))
    return [branch for branch, work in candidates if likely(work) >= LEAST_OPERATIONS]


def _operations(node: Node) -> Dim:
    """Multiply-accumulates of a matrix product, as float ones of equal time; for other operators
    the number of elements of the result.
    """
    macs = count_macs(node)
    if not decide(macs != 0):
        return node.type.size
    return macs if node.operands[0].type.dtype.is_float else macs // INT8_TIMES


Owner = tuple[int, tuple[int, ...]]
"""Position of the backend in the order of preference, and positions of the branches around the
node."""

Key = tuple[int, Owner]
"""Level and owner."""


@dataclass(frozen=True, repr=False)
class Segment(Concise):
    """A part of a graph, and the backend that compiles it.

    Its inputs and outputs are named after the nodes whose values they are.  It runs if all
    ``branches`` around it are taken.
    """

    backend: Backend
    graph: Graph
    nodes: tuple[Node, ...]
    branches: tuple[Branch, ...] = ()

    @property
    def reads(self) -> tuple[Node, ...]:
        """The nodes whose values it reads, those of conditions included."""
        conditions = (branch.condition for branch in self.branches)
        return (*self.graph.inputs, *(c for c in conditions if not isinstance(c, Constant)))


def partition(
    graph: Graph, backends: Sequence[Backend], branches: Sequence[Branch] = ()
) -> tuple[Segment, ...]:
    """Segments in a possible order of execution.  Raises ``BackendError``.

    ``branches`` are the ones that run only if they are taken.
    """
    choices = {node: _choices(node, backends) for node in graph.compute_nodes()}
    positions = place(graph, choices, _costs(backends))
    return tuple(
        Segment(
            backends[part.position], part.graph, part.nodes, tuple(branches[i] for i in part.inside)
        )
        for part in cut_graph(graph, positions, branches)
    )


@dataclass(frozen=True, repr=False)
class GraphPart(Concise):
    """A part of a graph whose nodes have one ``position`` and are ``inside`` of the same branches.

    Its inputs and outputs are named after the nodes whose values they are.
    """

    position: int
    graph: Graph
    nodes: tuple[Node, ...]
    inside: tuple[int, ...] = ()


def cut_graph(
    graph: Graph, positions: Mapping[Node, int], branches: Sequence[Branch] = ()
) -> Iterator[GraphPart]:
    """The parts of a graph in a possible order of execution, given who runs each operator."""
    owners = {node: (position, around(node, branches)) for node, position in positions.items()}
    levels = _Levels(graph, owners, branches, late_sizes(graph))
    levels.sink()
    members: dict[Key, list[Node]] = {}
    for node in owners:
        members.setdefault(levels.key(node), []).append(node)
    for key in sorted(members):
        _, (position, inside) = key
        inner = _cut_out(graph, members[key], levels.deciding)
        yield GraphPart(position, inner, tuple(members[key]), inside)


def around(node: Node, branches: Sequence[Branch]) -> tuple[int, ...]:
    return tuple(i for i, branch in enumerate(branches) if node in branch.nodes)


def _choices(node: Node, backends: Sequence[Backend]) -> tuple[int, ...]:
    """The position of the first backend that supports the node; if it says what it costs, with all
    others that do.  Results of an operator of onnxruntime stay together, so they have one choice.
    """
    for position, backend in enumerate(backends):
        if backend.supports(node):
            if not isinstance(backend, TimedBackend) or isinstance(node, External):
                return (position,)
            later = enumerate(backends[position + 1 :], position + 1)
            return (
                position,
                *(i for i, b in later if isinstance(b, TimedBackend) and b.supports(node)),
            )
    names = ", ".join(backend.name for backend in backends)
    raise BackendError(f"no backend supports {node!r}. Remedy: add one that does to {names}.")


def _costs(backends: Sequence[Backend]) -> Costs:
    """The costs that backends state, checked; others take no time."""

    def time(node: Node, position: int) -> float:
        backend = backends[position]
        seconds = backend.time(node) if isinstance(backend, TimedBackend) else 0.0
        return _check(seconds, backend, f"time of {node!r}")

    def transfer(value: Node, position: int) -> float:
        backend = backends[position]
        if not isinstance(backend, TimedBackend):
            return 0.0
        each, byte = backend.transfer
        return _check(each + byte * likely(value.type.nbytes), backend, f"transfer of {value!r}")

    return Costs(cache(time), cache(transfer))


def _check(seconds: float, backend: Backend, what: str) -> float:
    if 0 <= seconds < math.inf:
        return seconds
    raise BackendError(
        f"{backend.name}: the {what} is {seconds}. Remedy: state seconds, finite and at least 0."
    )


@dataclass
class _Levels:
    graph: Graph
    owners: Mapping[Node, Owner]
    branches: Sequence[Branch] = ()
    late: Mapping[str, SizeSource] = field(default_factory=dict)
    levels: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set the earliest levels that operands allow."""
        for node in TopologicalSorter(
            {n: self.predecessors(n) for n in self.owners}
        ).static_order():
            holder, awaited = self.owners[node], self.predecessors(node)
            ready = (self.levels[o] + (self.owners[o] != holder) for o in awaited)
            self.levels[node] = max(ready, default=0)
        self.sizes = Counter(map(self.key, self.owners))
        self.fixed = {node for _, node in self.graph.outputs}
        self.fixed |= {branch.condition for branch in self.branches}
        self.fixed |= self.deciding | self.joint

    @cached_property
    def deciding(self) -> frozenset[Node]:
        """The nodes that decide sizes."""
        return frozenset(late.node for late in self.late.values())

    @property
    def joint(self) -> frozenset[Node]:
        """The results of nodes of the model that have several: one run gives them all."""
        nodes = [node for node in self.owners if isinstance(node, External)]
        counts = Counter((node.model, node.args) for node in nodes)
        return frozenset(node for node in nodes if counts[node.model, node.args] > 1)

    def sources(self, node: Node) -> list[Node]:
        return [o for o in node.operands if o in self.owners]

    def predecessors(self, node: Node) -> list[Node]:
        """Nodes that must be computed before the node, before it is known whether it runs, or
        before its sizes are known."""
        conditions = (self.branches[i].condition for i in self.owners[node][1])
        deciding = (self.late[name].node for name in node.symbols if name in self.late)
        return [
            *self.sources(node),
            *(c for c in conditions if c in self.owners),
            *(each for each in deciding if each is not node),
        ]

    def key(self, node: Node) -> Key:
        return self.levels[node], self.owners[node]

    def sink(self) -> None:
        """Move nodes to the latest levels that their readers allow, last nodes first, unless more
        bytes cross borders that way.
        """
        # Readers move before their operands, so that one pass reaches the latest levels.
        for node in reversed(tuple(self.owners)):
            target = self.latest(node)
            if target is not None and likely(self.saved(node, target)) >= likely(self.added(node)):
                self.sizes[self.key(node)] -= 1
                self.levels[node] = target
                self.sizes[self.key(node)] += 1

    def latest(self, node: Node) -> int | None:
        """A later level for the node: the one of its readers, or one that its backend
        already has.
        """
        users, holder = self.graph.users[node], self.owners[node]
        if not users or node in self.fixed:
            return None
        limit = min(self.levels[u] - (self.owners[u] != holder) for u in users)
        if limit == self.levels[node]:
            return None
        if all(self.owners[u] == holder for u in users):
            return limit
        later = range(limit, self.levels[node], -1)
        return next((level for level in later if self.sizes[level, holder]), None)

    def saved(self, node: Node, level: int) -> Dim:
        """Bytes of the result that would no longer cross a border."""
        there = all(self.key(u) == (level, self.owners[node]) for u in self.graph.users[node])
        return node.type.nbytes if there else 0

    def added(self, node: Node) -> Dim:
        """Bytes of operands that would newly cross a border."""
        key = self.key(node)
        return sum(
            o.type.nbytes
            for o in dict.fromkeys(self.sources(node))
            if self.key(o) == key and all(self.key(u) == key for u in self.graph.users[o])
        )


def _cut_out(graph: Graph, nodes: Iterable[Node], deciding: Set[Node]) -> Graph:
    """The nodes as a graph of their own; values that they read from outside become its inputs,
    and ``deciding`` nodes, whose results have late sizes, are among its outputs."""
    inside: dict[Node, Node] = {}
    inputs: dict[Node, Input] = {}
    for node in nodes:
        operands = []
        for operand in node.operands:
            if operand not in inside and not isinstance(operand, Constant):
                inputs.setdefault(operand, placeholder(operand))
            operands.append(inside.get(operand) or inputs.get(operand) or operand)
        inside[node] = node.with_operands(tuple(operands))
    outputs = {node for _, node in graph.outputs} | deciding
    results = [
        (node.name, copy)
        for node, copy in inside.items()
        if node in outputs or any(user not in inside for user in graph.users[node])
    ]
    return Graph(tuple(inputs.values()), tuple(results), graph.source_hash)


def single_node(node: Node) -> Graph:
    """The graph of one operator; its computed operands are inputs."""
    return _cut_out(Graph((), ((node.name, node),)), [node], frozenset())


def placeholder(node: Node) -> Input:
    return node if isinstance(node, Input) else Input(name=node.name, tensor=node.type)
