"""Multiply-accumulates of the nodes of a graph that quantglow takes, and of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import onnx

from quantglow.importer.onnx.nodes.context import ImportScope
from quantglow.ir.graph.graph import topological_order
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Loop
from quantglow.ir.ops.work import count_macs
from quantglow.ir.symbolic.size import likely
from quantglow.ort.products import may_have_products


def count_claimed(nodes: Sequence[onnx.NodeProto], scope: ImportScope) -> int:
    """Multiply-accumulates of claimed nodes; free sizes are those of the hints."""
    values = (scope.values.get(name) for node in nodes for name in node.output)
    roots = [value for value in values if isinstance(value, Node)]
    return _count(topological_order(roots))


def count_left(scope: ImportScope) -> int:
    """Multiply-accumulates of operators that quantglow does not compile, estimated from their
    shapes: each result reads a filter, or a column of the second operand."""
    return sum(
        likely(value.type.size) * _products(value)
        for value in scope.values.values()
        if isinstance(value, External) and may_have_products(value.op_type)
    )


def _products(node: External) -> int:
    """Products of a result."""
    if len(node.args) < 2 or not node.args[1].type.shape:
        return 0
    shape = [max(likely(dim), 1) for dim in node.args[1].type.shape]
    return math.prod(shape) // (shape[0] if "Conv" in node.op_type else shape[-1])


def _count(nodes: Iterable[Node]) -> int:
    total = 0
    for node in nodes:
        total += likely(count_macs(node))
        if isinstance(node, Loop):
            total += likely(node.trips) * _count(node.body.nodes)
    return total
