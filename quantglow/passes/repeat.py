"""Passes that enable one another, run together until nothing changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, groupby, islice

from quantglow import debug
from quantglow.errors import QuantglowError
from quantglow.graph.graph import Graph
from quantglow.graph.rewrite import ROUNDS, Pass, RewritePass, together
from quantglow.lazy import cached_property
from quantglow.pass_manager import run_whole

USUAL_ROUNDS = 16
"""Rounds without looking for circles."""


@dataclass(frozen=True)
class Repeat:
    """``passes`` in order until nothing changes.  Local passes in a row share their traversals.

    If readers want one value in several layouts, its Transposes may go round in a circle; the
    repetition ends when the graph has had the same structure before.  Passes that grow a graph for
    ever stop after ``ROUNDS``: an error while verifying.
    """

    name: str
    passes: tuple[Pass, ...]

    def __call__(self, graph: Graph) -> Graph:
        settled, seen = 0, set[int]()
        for turn, step in enumerate(islice(cycle(self.steps), ROUNDS * len(self.steps))):
            if turn >= USUAL_ROUNDS * len(self.steps) and turn % len(self.steps) == 0:
                if (found := structure(graph)) in seen:
                    return graph
                seen.add(found)
            new = step(graph) if isinstance(step, RewritePass) else run_whole(step, graph)
            # A local pass runs until it finds nothing more, so it need not look again.
            settled = settled + 1 if new is graph else int(isinstance(step, RewritePass))
            graph = new
            if settled == len(self.steps):
                return graph
        if debug.verifying():
            raise QuantglowError(f"passes {self.name!r} did not settle in {ROUNDS} rounds")
        return graph

    @cached_property
    def steps(self) -> tuple[Pass, ...]:
        """The passes, local ones in a row as one."""
        steps: list[Pass] = []
        for _, run in groupby(self.passes, lambda step: isinstance(step, RewritePass)):
            passes = list(run)
            local = [step for step in passes if isinstance(step, RewritePass)]
            steps.extend([together(self.name, local)] if local else passes)
        return tuple(steps)


def structure(graph: Graph) -> int:
    """A hash of the operators, their order and their types; names do not count."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    return hash(
        tuple(
            (node.op, node.type, getattr(node, "perm", ()), *(position[o] for o in node.operands))
            for node in graph.nodes
        )
    )


def single_passes(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Each pass once, those that are repeated in place of their group."""
    found = (
        step
        for entry in passes
        for step in (entry.passes if isinstance(entry, Repeat) else (entry,))
    )
    return tuple(dict.fromkeys(found))


def repeat(name: str, *passes: Pass) -> Repeat:
    return Repeat(name, passes)
