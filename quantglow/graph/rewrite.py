"""Passes.  A local rule sees one node at a time and returns its replacement, or None.

A rule gets nodes whose operands are already rewritten, and ``uses`` to ask how many readers a
node has.  Rules share one loop that runs until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quantglow import pass_manager
from quantglow.errors import QuantglowError
from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Node
from quantglow.pass_manager import active_record, run_in_order

ROUNDS = 64
"""Maximum number of rounds of a local pass; one that needs more undoes its own changes."""


@dataclass
class Uses:
    """Numbers of readers, and names, while a pass rewrites.

    Counts never fall within one traversal, so a node with a count of one has one reader.
    """

    counts: dict[Node, int] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    was_asked: bool = False

    def single(self, node: Node) -> bool:
        """Whether ``node`` has only one reader, so that it may be absorbed."""
        self.was_asked = True
        return self.counts.get(node, 1) == 1

    def only(self, reader: Node, node: Node) -> bool:
        """Whether ``reader`` alone reads ``node``, and may absorb it; else it declined."""
        if not self.single(node):
            declined(reader, f"{node.name!r} has other readers")
        return self.single(node)

    def fresh(self, name: str) -> str:
        """``name``, numbered if the graph has it already."""
        return self.names.fresh(name)

    def replaced(self, node: Node, replacement: Node) -> None:
        """Record that the readers of ``node`` now read ``replacement``."""
        readers = self.counts[node]
        if replacement in self.counts:
            readers += self.counts[replacement] - node.operands.count(replacement)
        else:
            self._adopt(replacement)
        self.counts[replacement] = readers

    def _adopt(self, made: Node) -> None:
        """Count the reads of a node that a rule made, and of the new nodes below it."""
        for operand in made.operands:
            known = operand in self.counts
            self.counts[operand] = self.counts.get(operand, 0) + 1
            if not known:
                self._adopt(operand)


LocalRule = Callable[[Node, Uses], Node | None]
Pass = Callable[[Graph], Graph]


@dataclass(frozen=True)
class RewritePass:
    """A local rule as a pass over the graph, run until nothing changes.

    ``settles``: nodes may note that the rule leaves them alone; they keep it alive.
    """

    name: str
    rule: LocalRule
    doc: str = ""
    parts: tuple[RewritePass, ...] = ()
    settles: bool = False

    def __call__(self, graph: Graph) -> Graph:
        for _ in range(ROUNDS):
            new = self._once(graph)
            if new is graph:
                return graph
            graph = new
        raise QuantglowError(f"pass {self.name!r} did not settle in {ROUNDS} rounds")

    def _once(self, graph: Graph) -> Graph:
        uses = Uses(names=Names.of(graph))
        originals, rule = iter(graph.nodes), self._noted_rule()
        settles = self.settles and rule is self.rule

        def apply(node: Node) -> Node:
            uses.counts[node] = graph.use_counts[next(originals)]
            if settles and rule in node.settled:
                return node
            uses.was_asked = False
            replacement = rule(node, uses)
            if replacement is None:
                if settles and not uses.was_asked:
                    node.settled.add(rule)
                return node
            uses.replaced(node, replacement)
            return replacement

        return graph.rebuild(apply)

    def _noted_rule(self) -> LocalRule:
        """The rule, or the rules of its parts, noted in the record if one is kept."""
        record = active_record()
        if record is None:
            return self.rule
        parts = self.parts or (self,)
        return first_match([record.watched(part.name, part.rule) for part in parts])


def first_match(rules: Sequence[LocalRule]) -> LocalRule:
    """The rule that applies, at each node, the first of ``rules`` that matches."""

    def first(node: Node, uses: Uses) -> Node | None:
        for rule in rules:
            replacement = rule(node, uses)
            if replacement is not None:
                return replacement
        return None

    return first


def together(name: str, passes: Sequence[RewritePass]) -> RewritePass:
    """One local pass that applies, at each node, the first rule that matches."""
    rule = first_match([step.rule for step in passes])
    return RewritePass(name, rule, parts=tuple(passes), settles=True)


def rewrite_pass(name: str) -> Callable[[LocalRule], RewritePass]:
    """Make a pass from a local rule.  Its docstring is the equation."""
    return lambda rule: RewritePass(name, rule, rule.__doc__ or "", settles=True)


def declined(node: Node, reason: str) -> Node | None:
    """None, noted in the debug log as the answer of a rule to ``node``, with its reason."""
    pass_manager.declined(node.name, reason)
    return None


def run_passes(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """Run passes in order; a failing pass is named in the error."""
    return run_in_order(graph, passes, Graph.verify)
