"""Comparison of two graphs by their forms, which shows that they compute the same without arrays.

Operators are compared from the outputs on.  Equal operators with equal attributes on equal operands
of equal shapes give equal results; what only gives the elements another shape is looked through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.shape import Expand, Reshape, Slice, Transpose
from quantglow.ir.symbolic.expression import Expression, Values, number
from quantglow.ir.symbolic.size import Size
from quantglow.ir.types import TensorType


def differences(one: Graph, other: Graph, sizes: Values | None = None) -> list[Node]:
    """The nodes of a graph at which another begins to differ; none where both surely compute the
    same at some sizes, or wherever the guards of both hold if no sizes are given."""
    if len(one.outputs) != len(other.outputs) or len(one.inputs) != len(other.inputs):
        return [node for _, node in one.outputs]
    comparison = _Comparison(sizes)
    comparison.agrees.update(dict.fromkeys(zip(one.inputs, other.inputs, strict=True), True))
    pairs = [(x, y) for (_, x), (_, y) in zip(one.outputs, other.outputs, strict=True)]
    differing = [x for x, y in pairs if comparison.at(x.type) != comparison.at(y.type)]
    comparison.compare(comparison.below_shapes(x, y) for x, y in pairs)
    return list(dict.fromkeys([*differing, *comparison.first]))


@dataclass
class _Comparison:
    """Pairs of nodes that are compared at some sizes, and whether they agree; ``first``: those that
    do not though all their operands do, or differ themselves."""

    sizes: Values | None
    agrees: dict[tuple[Node, Node], bool] = field(default_factory=dict)
    first: list[Node] = field(default_factory=list)

    def compare(self, pairs: Iterable[tuple[Node, Node]]) -> None:
        """Compare pairs and all that they are computed from."""
        waiting = list(pairs)
        while waiting:
            pair = waiting[-1]
            if pair in self.agrees:
                waiting.pop()
                continue
            operands = self.operand_pairs(*pair)
            new = [p for p in operands or () if p not in self.agrees]
            if new:
                waiting.extend(new)
                continue
            if operands is None:
                self.first.append(pair[0])
            self.agrees[pair] = operands is not None and all(self.agrees[p] for p in operands)

    def operand_pairs(self, one: Node, other: Node) -> list[tuple[Node, Node]] | None:
        """The operands that must agree for two nodes to; None where these differ anyway."""
        if type(one) is not type(other) or self.at(one.type) != self.at(other.type):
            return None
        if isinstance(one, Input):
            return None
        if isinstance(one, Constant):
            assert isinstance(other, Constant)
            return [] if _is_equal(one, other) else None
        if len(one.operands) != len(other.operands):
            return None
        if self.attributes(one) != self.attributes(other):
            return None
        pairs = list(zip(one.operands, other.operands, strict=True))
        if any(self.at(x.type) != self.at(y.type) for x, y in pairs):
            return None
        return [self.below_shapes(x, y) for x, y in pairs]

    def attributes(self, node: Node) -> dict[str, Any]:
        """Attributes by name; of bodies nothing is known but themselves."""
        return {name: self.at(value) for name, value in node.attributes().items()}

    def below_shapes(self, *nodes: Node) -> Any:
        """The values whose elements some nodes have in the same order."""
        return tuple(map(self._below, nodes))

    def _below(self, node: Node) -> Node:
        while isinstance(node, Reshape | Expand | Slice | Transpose) and self.keeps_order(node):
            node = node.x
        return node

    def keeps_order(self, node: Reshape | Expand | Slice | Transpose) -> bool:
        """Whether a node gives elements another shape only, at sizes that may not be its own."""
        before, after = self.at(node.x.type.shape), self.at(node.type.shape)
        if isinstance(node, Reshape):
            return reduce(mul, before, number(1)) == reduce(mul, after, number(1))
        if isinstance(node, Transpose):
            moved = [p for p in node.perm if before[p] != number(1)]
            return moved == sorted(moved)
        ones = [size for size in before if size != number(1)]
        is_whole = ones == [size for size in after if size != number(1)]
        if isinstance(node, Slice):
            starts, steps = self.at(node.starts), self.at(node.steps)
            return is_whole and {*starts} <= {number(0)} and {*steps} <= {number(1)}
        return is_whole

    def at(self, value: Any) -> Any:
        """A value whose integers are expressions: constant ones where there are sizes."""
        if isinstance(value, tuple):
            return tuple(map(self.at, value))
        if isinstance(value, Size):
            return self.expression(value.expression)
        if type(value) is int:
            return number(value)
        if isinstance(value, TensorType):
            return value.element, self.at(value.shape)
        if isinstance(value, Expr):
            return value.op, self.at(value.args), self.at(value.value)
        return value

    def expression(self, formula: Expression) -> Expression:
        """The expression at the sizes; as it is with a size of one graph only, which a result has
        where it could not be computed."""
        if self.sizes is None or not formula.names <= self.sizes.keys():
            return formula
        return number(formula.at(self.sizes))


def _is_equal(one: Constant, other: Constant) -> bool:
    """Whether two constants have the same bits."""
    x, y = one.value, other.value
    return x is y or (
        (x.dtype, x.shape) == (y.dtype, y.shape)
        and bool(np.array_equal(x.reshape(-1).view(np.uint8), y.reshape(-1).view(np.uint8)))
    )
