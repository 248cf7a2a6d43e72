"""Products taken apart: the activation functions are recognised in any association."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.ops.binary import Add, Binary, Mul
from quantglow.passes.constants import close, scalar_of
from quantglow.passes.simplify_arithmetic import plain

DEPTH = 4
"""Nested products that are taken apart: no known spelling needs more."""


def factors(node: Node, depth: int = DEPTH) -> tuple[float, list[Node]]:
    """``c * f0 * f1 * …``: the product of the scalar Constants, and the other factors."""
    scalar = scalar_of(node)
    if scalar is not None:
        return scalar, []
    if depth == 0 or not isinstance(node, Mul) or not plain(node):
        return 1.0, [node]
    left, right = factors(node.x, depth - 1), factors(node.y, depth - 1)
    return left[0] * right[0], left[1] + right[1]


def plus_scalar(node: Node) -> tuple[Node, float] | None:
    """``(x, c)`` of ``x + c``."""
    if isinstance(node, Add) and plain(node):
        for x, y in ((node.x, node.y), (node.y, node.x)):
            c = scalar_of(y)
            if c is not None and x.type == node.type:
                return x, c
    return None


def added_to(node: Node, value: float) -> Node | None:
    """``x`` of ``x + value``."""
    found = plus_scalar(node)
    return found[0] if found is not None and close(found[1], value) else None


def scaled_by(node: Node, scale: float) -> list[Node] | None:
    """The other factors of a product whose scalar Constants make ``scale``."""
    c, others = factors(node)
    return others if close(c, scale) else None


def partner(node: Binary, scale: float = 1.0) -> list[tuple[Node, Node]]:
    """``(x, g)`` for each way to read the node as ``scale * x * g``, x of the node's type."""
    others = scaled_by(node, scale)
    if others is None or len(others) != 2:
        return []
    a, b = others
    return [(x, g) for x, g in ((a, b), (b, a)) if x.type == node.type]
