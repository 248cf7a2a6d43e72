"""Which branches of conditions are compiled apart, so that they run only if they are taken.

A program computes both branches and chooses.  That is the faster way for small ones: to leave a
program and enter another takes longer.
"""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter.choices import Branch, branches_of
from quantglow.ops.work import macs_of

LEAST_OPERATIONS = 12_000_000
"""In float, of a branch that is worth programs of its own: they take some 130 microseconds, beside
120 for two programs more."""

INT8_TIMES = 4
"""Multiplications of bytes in the time of one of float32."""


def branches_apart(graph: Graph) -> list[Branch]:
    """The large branches of a graph."""
    return [b for b in branches_of(graph) if sum(map(operations, b.nodes)) >= LEAST_OPERATIONS]


def operations(node: Node) -> int:
    """Multiply-accumulates of a matrix product, as many in float take its time; of other operators
    the elements of the result."""
    if not (macs := macs_of(node)):
        return node.type.size
    return macs if node.operands[0].type.dtype.is_float else macs // INT8_TIMES
