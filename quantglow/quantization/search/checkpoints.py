"""What a run of a plan had computed part of the way, so that the run of another plan can go on from
there: plans that are tried one after the other mostly differ in one part of the network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.quantization.plan.int16 import is_stored
from quantglow.quantization.plan.plan import Plan
from quantglow.types import Array, ElementType

STATES = 16
"""Of a run that are kept, evenly along its nodes."""

MOST_NBYTES = 2**27
"""For the states of all samples of a plan."""


@dataclass(frozen=True)
class State:
    """Before the node at ``position``: the values that are still read, and the rounded copies of
    those that float nodes read, too.
    """

    position: int
    values: Mapping[Node, Array]
    copies: Mapping[Node, Array]

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in (*self.values.values(), *self.copies.values()))


@dataclass
class Trace:
    """States of the run of a plan on one sample, of ``room_nbytes`` together at most; ``before``
    has those of another plan.
    """

    plan: Plan
    room_nbytes: int
    before: Trace | None = None
    states: list[State] = field(default_factory=list)

    def add(
        self, position: int, values: Mapping[Node, Array], copies: Mapping[Node, Array]
    ) -> None:
        """Keep the state of a run, if its turn has come and there is room."""
        last = self.states[-1].position if self.states else 0
        if position - last < max(len(self.plan.graph.nodes) // STATES, 1):
            return
        kept = {node: v for node, v in values.items() if not isinstance(node, Constant)}
        state = State(position, kept, dict(copies))
        if state.nbytes <= self.room_nbytes:
            self.states.append(state)
            self.room_nbytes -= state.nbytes

    def resumed(self, ends: Collection[Node]) -> State | None:
        """The last state of the run before that this plan has in common with it.  The states until
        then become those of this run; ``ends``: what is read when all has run.
        """
        before, self.before = self.before, None
        if before is None:
            return None
        same = _in_common(self.plan, before.plan)
        shared = takewhile(lambda state: state.position <= same, before.states)
        graph = self.plan.graph
        for state in shared:
            if _read_from(graph, state.position, ends) <= state.values.keys():
                self.states.append(state)
                self.room_nbytes -= state.nbytes
        return self.states[-1] if self.states else None


@dataclass
class Traces:
    """Of the plan that others are compared with, and of the one that ran last."""

    kept: list[Trace] = field(default_factory=list)
    latest: list[Trace] = field(default_factory=list)

    def of(self, plan: Plan, samples: int) -> list[Trace]:
        """New traces of a plan, one for each sample, that begin with those kept."""
        before: Sequence[Trace | None] = self.kept or [None] * samples
        room = MOST_NBYTES // max(samples, 1)
        self.latest = [Trace(plan, room, trace) for trace in before]
        return self.latest

    def keep(self) -> None:
        """The plan that ran last is the one that others are compared with."""
        self.kept = self.latest


def _in_common(one: Plan, other: Plan) -> int:
    """How many nodes at the start are the same, and rounded alike."""
    pairs = zip(one.graph.nodes, other.graph.nodes, strict=False)
    alike = (a is b and _decided(one, a) == _decided(other, b) for a, b in pairs)
    return sum(1 for _ in takewhile(bool, alike))


def _decided(plan: Plan, node: Node) -> tuple[bool, ElementType | None]:
    """What the value of a node depends on, beside its operands."""
    return plan.is_int8(node), plan.elements.get(node) if is_stored(plan, node) else None


def _read_from(graph: Graph, position: int, ends: Collection[Node]) -> set[Node]:
    """The values computed before a position that are read from there on."""
    read = {operand for node in graph.nodes[position:] for operand in node.operands}
    before = (node for node in graph.nodes[:position] if not isinstance(node, Constant))
    return {node for node in before if node in read or node in ends}
