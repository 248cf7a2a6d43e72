"""Passes that open ways for one another, run together until nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from quantglow import debug
from quantglow.errors import QuantglowError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.graph.rewrite import ROUNDS, Pass, RewritePass, Uses


@dataclass(frozen=True)
class Repeat:
    """``passes`` in order until nothing changes.  Local passes in a row share their traversals.

    Passes that undo each other stop after ``ROUNDS``: an error while verifying, else merely a
    graph that could be smaller.
    """

    name: str
    passes: tuple[Pass, ...]

    def __call__(self, graph: Graph) -> Graph:
        for _ in range(ROUNDS):
            new = graph
            for step in self.steps:
                new = step(new)
            if new is graph or len(self.steps) == 1:
                return new
            graph = new
        if debug.verifying():
            raise QuantglowError(f"passes {self.name!r} did not settle in {ROUNDS} rounds")
        return graph

    @cached_property
    def steps(self) -> tuple[Pass, ...]:
        """The passes, local ones in a row as one."""
        steps: list[Pass] = []
        for local, run in groupby(self.passes, lambda step: isinstance(step, RewritePass)):
            passes = list(run)
            steps.extend([together(self.name, passes)] if local else passes)
        return tuple(steps)


def repeat(name: str, *passes: Pass) -> Repeat:
    return Repeat(name, passes)


def together(name: str, passes: list[Pass]) -> RewritePass:
    """One local pass that applies, at each node, the first rule that matches."""
    rules = [step.rule for step in passes if isinstance(step, RewritePass)]

    def first_match(node: Node, uses: Uses) -> Node | None:
        for rule in rules:
            replacement = rule(node, uses)
            if replacement is not None:
                return replacement
        return None

    return RewritePass(name, first_match)
