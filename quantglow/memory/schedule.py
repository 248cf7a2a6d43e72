"""Scheduling without a search: the depth-first order with the smallest peak of live activations.

Candidates are depth-first orders that visit operands in different sequence; the one with the
smallest simulated peak wins.  Glow's child-memory order is one of them.  Sizes of nodes stand for
buffers here: ``search`` knows which of these share memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from quantglow.graph.graph import Graph, topological_order
from quantglow.graph.node import Constant, Input, Node
from quantglow.symbolic.size import likely


def schedule(graph: Graph) -> tuple[Node, ...]:
    """Nodes of the graph in execution order; operands come before users."""
    depth = _subtree_peaks(graph)
    orders: list[Callable[[Sequence[Node]], Sequence[Node]]] = [
        list,
        lambda operands: list(reversed(operands)),
        lambda operands: sorted(operands, key=lambda n: likely(n.type.nbytes) - depth[n]),
    ]
    roots = [*graph.inputs, *(node for _, node in graph.outputs)]
    candidates = [topological_order(roots, order) for order in orders]
    return min(candidates, key=lambda nodes: peak_nbytes(graph, nodes))


def peak_nbytes(graph: Graph, order: Sequence[Node]) -> int:
    """Peak of the live activations, in bytes, if nodes run in ``order``."""
    waiting = Counter(graph.use_counts)
    live = peak = 0
    for node in order:
        live += _weight(node)
        peak = max(peak, live)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand]:
                live -= _weight(operand)
    return peak


def _weight(node: Node) -> int:
    return 0 if isinstance(node, Input | Constant) else likely(node.type.nbytes)


def _subtree_peaks(graph: Graph) -> dict[Node, int]:
    """Peak memory of computing each node, as if the graph were a tree."""
    peaks: dict[Node, int] = {}
    for node in graph.nodes:
        held = need = 0
        for operand in sorted(node.operands, key=lambda n: likely(n.type.nbytes) - peaks[n]):
            need = max(need, held + peaks[operand])
            held += _weight(operand)
        peaks[node] = max(need, held + _weight(node))
    return peaks
