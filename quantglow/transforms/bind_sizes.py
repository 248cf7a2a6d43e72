"""A graph with integers in place of some of its free sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops.expression import Expr
from quantglow.ir.symbolic.expression import Values
from quantglow.ir.symbolic.size import Size
from quantglow.ir.types import TensorType


def bind_sizes(graph: Graph, values: Values) -> Graph:
    """The graph at values of symbols at which its guards hold; sizes of other symbols stay free."""
    bound: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(bound[operand] for operand in node.operands)
        # Operands and attributes change together: a type rule compares the sizes of both.
        attributes = (
            {name: _bind(value, values) for name, value in node.attributes().items()}
            if node.has_free_sizes
            else {}
        )
        bound[node] = node.with_operands(operands, **attributes)
    inputs = tuple(node for node in map(bound.__getitem__, graph.inputs) if isinstance(node, Input))
    outputs = tuple((name, bound[node]) for name, node in graph.outputs)
    return replace(graph, inputs=inputs, outputs=outputs)


def _bind(value: Any, values: Values) -> Any:
    """An attribute with integers for its sizes."""
    match value:
        case Size() if value.symbols <= values.keys():
            return value.expression.at(values)
        case tuple():
            return tuple(_bind(part, values) for part in value)
        case TensorType():
            return value.with_shape(_bind(value.shape, values))
        case Expr():
            args = tuple(_bind(part, values) for part in value.args)
            return Expr(value.op, args, _bind(value.value, values))
        case Graph():
            return bind_sizes(value, values)
    return value
