"""Rewriting: local rules, passes that repeat until nothing changes, passes on loop bodies.

A local rule sees one node, whose operands are already rewritten, and returns its replacement, or
None; ``uses`` says how many readers a node has.  Passes that enable one another share one loop that
runs until nothing changes.  Bodies of loops are graphs: all passes run on them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, groupby, islice

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.graph.origins import Names
from quantglow.support import debug
from quantglow.support.classes import cached_property
from quantglow.support.errors import QuantglowError
from quantglow.transforms import pass_manager
from quantglow.transforms.pass_manager import active_record, run_in_order, run_whole

ROUNDS = 64
"""Maximum number of rounds of a local pass; one that needs more undoes its own changes."""

Pass = Callable[[Graph], Graph]

USUAL_ROUNDS = 16
"""Rounds without looking for circles."""


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
            decline(reader, f"{node.name!r} has other readers")
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

    def _adopt(self, node: Node) -> None:
        """Count the reads of a node that a rule made, and of the new nodes below it."""
        for operand in node.operands:
            is_counted = operand in self.counts
            self.counts[operand] = self.counts.get(operand, 0) + 1
            if not is_counted:
                self._adopt(operand)


LocalRule = Callable[[Node, Uses], Node | None]


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
        return _first_match([record.watched(part.name, part.rule) for part in parts])


def _first_match(rules: Sequence[LocalRule]) -> LocalRule:
    """The rule that applies, at each node, the first of ``rules`` that matches."""

    def first(node: Node, uses: Uses) -> Node | None:
        for rule in rules:
            replacement = rule(node, uses)
            if replacement is not None:
                return replacement
        return None

    return first


def _together(name: str, passes: Sequence[RewritePass]) -> RewritePass:
    """One local pass that applies, at each node, the first rule that matches."""
    rule = _first_match([step.rule for step in passes])
    return RewritePass(name, rule, parts=tuple(passes), settles=True)


def rewrite_pass(name: str) -> Callable[[LocalRule], RewritePass]:
    """Make a pass from a local rule.  Its docstring is the equation."""
    return lambda rule: RewritePass(name, rule, rule.__doc__ or "", settles=True)


def decline(node: Node, reason: str) -> Node | None:
    """None, noted in the debug log as the answer of a rule to ``node``, with its reason."""
    pass_manager.decline(node.name, reason)
    return None


def run_passes(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """Run passes in order; a failing pass is named in the error."""
    return run_in_order(graph, passes, Graph.verify)


@dataclass(frozen=True)
class RepeatedPass:
    """``passes`` in order until nothing changes.  Local passes in a row share their traversals.

    If readers want one value in several layouts, its Transposes may go round in a circle; the
    repetition ends when the graph has had the same structure before.  Passes that grow a graph for
    ever stop after ``ROUNDS``: an error while verifying.
    """

    name: str
    passes: tuple[Pass, ...]

    def __call__(self, graph: Graph) -> Graph:
        settled, structures = 0, set[int]()
        for turn, step in enumerate(islice(cycle(self.steps), ROUNDS * len(self.steps))):
            if turn >= USUAL_ROUNDS * len(self.steps) and turn % len(self.steps) == 0:
                if (key := _structure(graph)) in structures:
                    return graph
                structures.add(key)
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
            steps.extend([_together(self.name, local)] if local else passes)
        return tuple(steps)


def _structure(graph: Graph) -> int:
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
    singles = (
        step
        for entry in passes
        for step in (entry.passes if isinstance(entry, RepeatedPass) else (entry,))
    )
    return tuple(dict.fromkeys(singles))


def repeat(name: str, *passes: Pass) -> RepeatedPass:
    return RepeatedPass(name, passes)


@dataclass(frozen=True)
class OptimizeBodies:
    """Loop(x, body) -> Loop(x, optimize(body)); new names are unique in the whole graph."""

    optimize: Callable[[Graph], Graph]
    name: str = "optimize-bodies"

    def __call__(self, graph: Graph) -> Graph:
        names = Names({node.name for node in graph.every_node()})

        def optimized(body: Graph) -> Graph:
            originals = {node.name for node in body.every_node()}
            new = self.optimize(body)

            def renamed(node: Node) -> Node:
                stays = node.name in originals or node.name not in names.used
                names.used.add(node.name)
                return node if stays else replace(node, name=names.fresh(node.name))

            return new.rebuild(renamed)

        return graph.map_bodies(optimized)
