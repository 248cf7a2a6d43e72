"""Provenance: the nodes of the user's model that each node of a graph computes.

Options and reports speak of the user's model, in which a Gemm may be a MatMul and an Add, and an
LSTM one node.  An importer notes the node that it imports for every name that it claims
(``importer.onnx.nodes.context.ImportScope``), and ``Graph.rebuild``, by which every pass changes a
graph, derives the origins of what a rule made from those of what it replaced.  A graph that was
made by hand has no origins; then its own nodes are the user's.

``Names`` gives new nodes unique names, and ``with_aliases`` has the names by which users know
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node

if TYPE_CHECKING:
    from quantglow.ir.graph.graph import Graph


LARGEST_PATTERN = 64
"""Maximum number of nodes that are looked at for the origins of a replacement."""


@dataclass(frozen=True)
class Origin:
    """A node of the model.  ``inside``: the calls of local functions and the nodes with subgraphs
    that it is in, the innermost first, each without those that it is in."""

    name: str
    op_type: str
    domain: str = ""
    results: tuple[str, ...] = ()
    inside: tuple[Origin, ...] = ()

    @property
    def chain(self) -> tuple[Origin, ...]:
        """The node and all that it is in."""
        return (self, *self.inside)


@dataclass(frozen=True)
class Origins:
    """Origins of one node.  The work of the ``main`` ones is what the node does; ``fused`` are
    those that it took in: a bias, an activation, a normalization that was folded."""

    main: tuple[Origin, ...] = ()
    fused: tuple[Origin, ...] = ()

    @property
    def all(self) -> tuple[Origin, ...]:
        """Every origin with all that it is in."""
        return tuple(chain for origin in (*self.main, *self.fused) for chain in origin.chain)

    @property
    def types(self) -> frozenset[str]:
        """Operators of the model that the node computes a part of."""
        return frozenset(origin.op_type for origin in self.all)

    @property
    def main_types(self) -> frozenset[str]:
        """Operators whose work it does."""
        return frozenset(o.op_type for origin in self.main for o in origin.chain)

    @property
    def label(self) -> str:
        """The operators whose work it does, for reports."""
        return "+".join(dict.fromkeys(origin.op_type for origin in self.main))


NO_ORIGINS = Origins()


def _join(main: Iterable[Origins], fused: Iterable[Origins] = ()) -> Origins:
    """The origins of one node that does the work of ``main`` and took in ``fused``."""
    main = tuple(main)
    first = dict.fromkeys(origin for origins in main for origin in origins.main)
    others = [origin for origins in main for origin in origins.fused]
    others += [origin for origins in fused for origin in (*origins.main, *origins.fused)]
    return Origins(tuple(first), tuple(o for o in dict.fromkeys(others) if o not in first))


def find_origins(node: Node, origins: Mapping[str, Origins]) -> Origins:
    """The origins of a node; without one, the node itself."""
    return origins.get(node.name) or Origins((Origin(node.name, node.op, results=(node.name,)),))


def node_label(node: Node, origins: Mapping[str, Origins]) -> str:
    """The operators whose work a node does, for reports.

    A move that the compiler put in names both: ``Transpose for Conv`` is not a convolution.
    """
    sources = find_origins(node, origins)
    is_result = any(node.name in origin.results for origin in sources.all)
    if is_result or node.op in sources.main_types or not node.has(Trait.MOVES):
        return sources.label
    return f"{node.op} for {sources.label}"


@dataclass
class Lineage:
    """Origins by the names of nodes, while a graph is rebuilt, operands first.

    ``present``: the nodes of the new graph so far.
    """

    origins: dict[str, Origins]
    present: set[Node] = field(default_factory=set)

    def follow(self, before: Node, after: Node) -> None:
        """Note that a rule replaced ``before``, whose operands are present."""
        if after in self.present:
            self._join(before, after)
        else:
            self._derive(before, after)
        self.present.add(after)

    def _join(self, before: Node, after: Node) -> None:
        """One of two nodes that compute the same is left, for both."""
        pair = [self.origins.get(node.name, NO_ORIGINS) for node in (after, before)]
        if before.op == after.op and not isinstance(after, Input | Constant):
            self.origins[after.name] = _join(pair)

    def _derive(self, before: Node, after: Node) -> None:
        """Origins of all nodes that a rule made: computing ones continue what computed, moves what
        moved; where there was nothing of the kind, all of it."""
        created = list(_walk(after, self.present))
        frontier = {operand for node in created for operand in node.operands} & self.present
        replaced = [n for n in _walk(before, frontier) if n.name in self.origins]
        derived = {
            node.name: self._continue(
                node, [n for n in created if _moves(n) == _moves(node)], replaced
            )
            for node in created
        }
        self.origins.update(derived)
        self.present.update(created)

    def _continue(self, node: Node, beside: Sequence[Node], replaced: Sequence[Node]) -> Origins:
        """The origins of a new node: those of replaced nodes of its operator, and of the replaced
        ones that nothing else continues."""
        sources = [n for n in replaced if _moves(n) == _moves(node)] or list(replaced)
        kinds = {other.op for other in beside}
        same = [n for n in sources if n.op == node.op]
        gone = [n for n in sources if n.op not in kinds]
        main = same or _heaviest(gone or sources)
        if _moves(node):  # one move for several that the compiler put in: a chain would add up
            main = [n for n in main if n.op in self.origins[n.name].main_types] or main[:1]
        others = [n for n in gone if n not in main]
        return _join(*([self.origins[n.name] for n in part] for part in (main, others)))


def _walk(root: Node, stop: Iterable[Node]) -> Iterator[Node]:
    """The operators that a node is computed from, itself first, up to those of ``stop``."""
    visited, waiting = set(stop), [root]
    for _ in range(LARGEST_PATTERN):
        if not waiting:
            return
        node = waiting.pop(0)
        if node in visited or not node.operands:
            continue
        visited.add(node)
        yield node
        waiting.extend(node.operands)


def _moves(node: Node) -> bool:
    """Whether a node only moves numbers."""
    return node.has(Trait.MOVES)


def _heaviest(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of the heaviest kind: sums of products, else functions, else single steps."""

    def weight(node: Node) -> int:
        if _moves(node):
            return 0
        return 1 + node.has(Trait.FUNCTION) if node.has(Trait.LIGHT) else 3

    most = max(map(weight, nodes), default=0)
    return [node for node in nodes if weight(node) == most]


@dataclass
class Names:
    """The names of a graph's nodes and of the nodes made since."""

    used: set[str] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph) -> Names:
        """Names that new nodes of this graph must not have."""
        return Names(set(graph.names))

    def fresh(self, name: str) -> str:
        """``name``, or if it is taken ``name_2``, ``name_3``, …; the result is taken from
        now on.
        """
        candidate, number = name, 2
        while candidate in self.used:
            candidate, number = f"{name}_{number}", number + 1
        self.used.add(candidate)
        return candidate


def known_names(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """Every name that the user may know -> the nodes of ``graph`` that compute the values; none for
    what is no operator any more, as the size of a known shape.
    """
    present = {node.name: (node,) for node in graph.compute_nodes()}

    def nodes(value: str) -> tuple[Node, ...]:
        visited = set[str]()
        while value not in present and value not in visited:
            visited.add(value)
            value = graph.aliases.get(value, value)
        return present.get(value, ())

    results = {
        origin.name: tuple(dict.fromkeys(node for value in origin.results for node in nodes(value)))
        for origin in reversed(graph.sources)  # the first one keeps a name that two have
        if origin.name
    }
    return {**results, **{value: nodes(value) for value in graph.aliases}, **present}


def with_aliases(graph: Graph, before: Graph) -> Graph:
    """``graph``, which passes made from ``before``, with the names that were known there.

    Fusion keeps the last name: a value that is gone is now part of its first reader that is left.
    A value whose elements were only moved stands for the one that they come from.
    """
    if graph is before:
        return graph
    present = {node.name for node in graph.compute_nodes()}
    heirs: dict[str, str] = {}
    for node in reversed(before.compute_nodes()):
        readers = (heirs[user.name] for user in before.users[node])
        heirs[node.name] = node.name if node.name in present else next(filter(None, readers), "")
    holders: dict[str, str] = {}
    for node in before.compute_nodes():
        moved = node.operands[0].name if node.operands and node.has(Trait.MOVES) else ""
        is_moved = moved in holders and node.name not in present
        holders[node.name] = holders[moved] if is_moved else heirs[node.name]
    gone = {name: now for name, now in holders.items() if now != name}
    return replace(graph, sources=before.sources, aliases={**before.aliases, **gone})
