"""Checkpoints of fake-quantized runs, so that the run of another plan resumes where it differs.

Plans that are tried one after the other mostly differ in one part of the network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from quantglow.graph.ancestors import ancestors
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter.executor import Execution, State
from quantglow.quantization.plan.int16 import is_stored
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.fake_quantization import Rounded
from quantglow.types import ElementType

STATES = 16
"""Maximum number of states kept of a run, evenly spaced along its nodes."""

MAX_NBYTES = 2**27
"""Maximum size of the states of one plan, over all samples, in bytes."""


@dataclass
class RunCheckpoints:
    """States of the run of a plan on one sample, of ``room_nbytes`` together at most; ``before``
    has those of another plan.
    """

    plan: Plan
    room_nbytes: int
    before: RunCheckpoints | None = None
    states: list[State[Rounded]] = field(default_factory=list)

    def add(self, execution: Execution[Rounded]) -> None:
        """Keep the state of a run, if its turn has come and there is room."""
        last = self.states[-1].position if self.states else 0
        if execution.position - last < max(len(self.plan.graph.nodes) // STATES, 1):
            return
        state = execution.state
        if nbytes_of(state) <= self.room_nbytes:
            self._keep(state)

    def resumed(self, ends: Collection[Node]) -> State[Rounded] | None:
        """The last state that this plan has in common with the one before; None: there is none.

        The states up to it become those of this run.  ``ends``: values that are read when all
        nodes have run.
        """
        before, self.before = self.before, None
        if before is None:
            return None
        same = _common_prefix(self.plan, before.plan)
        for state in takewhile(lambda state: state.position <= same, before.states):
            if _read_from(self.plan.graph, state.position, ends) <= state.values.keys():
                self._keep(state)
        return self.states[-1] if self.states else None

    def _keep(self, state: State[Rounded]) -> None:
        self.states.append(state)
        self.room_nbytes -= nbytes_of(state)


@dataclass
class Checkpoints:
    """Checkpoints, one for each sample, of the best plan so far (``kept``) and of the latest."""

    kept: list[RunCheckpoints] = field(default_factory=list)
    latest: list[RunCheckpoints] = field(default_factory=list)

    def started(self, plan: Plan, samples: int) -> list[RunCheckpoints]:
        """Checkpoints for the runs of a plan, which resume from those kept."""
        before: Sequence[RunCheckpoints | None] = self.kept or [None] * samples
        room = MAX_NBYTES // max(samples, 1)
        self.latest = [RunCheckpoints(plan, room, run) for run in before]
        return self.latest

    def keep(self) -> None:
        """The latest plan is the best one: plans to come resume from its runs."""
        self.kept = self.latest


def nbytes_of(state: State[Rounded]) -> int:
    """Size of the values of a state, in bytes."""
    return sum(value.nbytes for value in state.values.values())


def _common_prefix(one: Plan, other: Plan) -> int:
    """Number of nodes at the start that are the same, and rounded alike."""
    pairs = zip(one.graph.nodes, other.graph.nodes, strict=False)
    alike = (a is b and _decided(one, a) == _decided(other, b) for a, b in pairs)
    return sum(1 for _ in takewhile(bool, alike))


def _decided(plan: Plan, node: Node) -> tuple[bool, ElementType | None]:
    """All that the value of a node depends on, beside its operands."""
    return plan.is_int8(node), plan.elements.get(node) if is_stored(plan, node) else None


def _read_from(graph: Graph, position: int, ends: Collection[Node]) -> set[Node]:
    """The values computed before a position that are read from there on."""
    needed = ancestors(ends)
    later = (node for node in graph.nodes[position:] if node in needed)
    read = {operand for node in later for operand in node.operands}
    before = (node for node in graph.nodes[:position] if not isinstance(node, Constant))
    return {node for node in before if node in read or node in ends}
