"""Bodies of loops: what depends on their inputs is inside, all else is captured, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quantglow.frontend.nodes.context import Scope
from quantglow.graph.graph import Graph, topological_order
from quantglow.graph.node import Constant, Input, Node


@dataclass
class Body:
    """The graph of a loop's body as it is made; constants in it have names of their own."""

    scope: Scope
    made: dict[Node, Node]
    captured: dict[Node, Input] = field(default_factory=dict)

    def inner(self, node: Node) -> Node:
        """The node inside of the body that stands for one of the scope."""
        if node not in self.made:
            name = self.scope.claim(node.name, derived=True)
            if isinstance(node, Constant):
                self.made[node] = replace(node, name=name)
            else:
                self.made[node] = self.captured[node] = Input(name=name, tensor=node.type)
        return self.made[node]


def closed(
    scope: Scope, inputs: Sequence[Input], ends: Sequence[Node]
) -> tuple[Graph, tuple[Node, ...]]:
    """The body from ``inputs`` to ``ends``, and the values that it captures."""
    body, inside = Body(scope, {node: node for node in inputs}), set[Node](inputs)
    for node in topological_order(ends):
        if node not in inside and not inside.isdisjoint(node.operands):
            inside.add(node)
            body.made[node] = node.with_operands(tuple(map(body.inner, node.operands)))
    outputs = tuple((made.name, made) for made in map(body.inner, ends))
    return Graph((*inputs, *body.captured.values()), outputs), tuple(body.captured)
