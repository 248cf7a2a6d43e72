"""Sources of free sizes: the value, of an input or computed, whose shape has each symbol.

The sizes of inputs are known before a run.  An External node may decide the shape of its result:
such a size is *late*, it is known when the node has run.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from quantglow.ir.graph.graph import Graph, topological_order
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import SMALLEST, Expression, parts
from quantglow.ir.symbolic.guards import Guard, Guards, Relation
from quantglow.ir.symbolic.size import FixedShape, symbol_name
from quantglow.support.errors import UnsupportedOpError


@dataclass(frozen=True)
class SizeSource:
    """A free size that is known with the value of a node: its size along ``axis``."""

    symbol: str
    node: Node
    axis: int

    @property
    def is_late(self) -> bool:
        """Whether the node has to run before the size is known."""
        return not isinstance(self.node, Input)


def size_sources(graph: Graph) -> dict[str, SizeSource]:
    """The source of each symbol, inputs first, then results in the order of the graph.

    A symbol that only nodes outside of the graph decide has none.
    """
    sources: dict[str, SizeSource] = {}
    behind: dict[Node, frozenset[str]] = {}
    for node in graph.nodes:
        # A node does not decide a size on which it depends itself.
        earlier = frozenset[str]().union(*(behind[operand] for operand in node.operands))
        behind[node] = earlier | node.symbols
        if isinstance(node, Input | External):
            for axis, dim in enumerate(node.type.shape):
                name = symbol_name(dim)
                if name is not None and name not in earlier:
                    sources.setdefault(name, SizeSource(name, node, axis))
    return sources


def late_sizes(graph: Graph) -> dict[str, SizeSource]:
    """The sizes that nodes decide, by symbol, in the order of the graph."""
    return {name: source for name, source in size_sources(graph).items() if source.is_late}


def are_sizes_alike(pinned: FixedShape, shape: FixedShape) -> bool:
    """Whether a shape is one for which a program was made for another one: empty shapes are
    constants of it, and sizes of 1 are no symbols."""
    if 0 in pinned:
        return pinned == shape
    return all((a == 1) == (b == 1) for a, b in zip(pinned, shape, strict=True))


def fixing_guards(guards: Guards, symbols: Set[str]) -> frozenset[Guard]:
    """The guards that leave a single value above 1 to something of these symbols."""
    equal = (guard for guard in guards.recorded if guard.relation is Relation.EQUAL)
    fixing = (guard for guard in equal if _fixed_value(guard.expression) >= SMALLEST)
    return frozenset(guard for guard in fixing if guard.expression.names & symbols)


def _fixed_value(expression: Expression) -> int:
    """The value of what an expression that is 0 compares with a number, 0 for other expressions."""
    _, factor, constant = parts(expression)
    return -constant // factor


def check_sources(graph: Graph, guards: Guards) -> None:
    """Raise ``UnsupportedOpError`` for a graph that depends on the size of a result which is not in
    it, because nothing reads the result itself: such a size is not known when the graph runs."""
    sources = size_sources(graph)
    reading = ((f"{n.name!r} ({n.op})", n.symbols - sources.keys()) for n in graph.nodes)
    problems = [
        f"{node}: it reads sizes of results that nothing else reads: {', '.join(sorted(names))}"
        for node, names in reading
        if names
    ]
    missing = guards.hints.keys() - sources.keys()
    decided = {n for guard in guards.answers(guards.hints.keys()) for n in guard.expression.names}
    if unread := sorted(decided & missing):
        problems.append(
            "sizes of results that nothing reads decide what is computed: " + ", ".join(unread)
        )
    if problems:
        raise UnsupportedOpError(problems)


def in_order_of_sizes(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph: operands, and nodes that decide the sizes of a node, come before it."""
    sources = size_sources(graph)

    def awaited(node: Node) -> tuple[Node, ...]:
        deciding = (sources[name].node for name in sorted(node.symbols) if name in sources)
        return (*node.operands, *(each for each in deciding if each is not node))

    return topological_order([*graph.inputs, *(node for _, node in graph.outputs)], awaited)
