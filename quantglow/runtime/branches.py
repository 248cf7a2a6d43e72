"""Branches of conditions that are compiled as programs of their own, so that only the taken one
runs.

A program computes both branches and selects.  That is faster for small branches, because changing
from one program to another takes time.
"""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter.choices import Branch, branches_of
from quantglow.ops.work import macs_of
from quantglow.symbolic.size import likely

LEAST_OPERATIONS = 12_000_000
"""Minimum number of operations, in float, of a branch with programs of its own: they take some
130 microseconds, and two more programs 120."""

INT8_TIMES = 4
"""Number of int8 multiplications in the time of one in float32."""


def branches_apart(graph: Graph) -> list[Branch]:
    """The large branches of a graph."""
    found = ((b, sum(map(operations, b.nodes))) for b in branches_of(graph))
    return [branch for branch, work in found if likely(work) >= LEAST_OPERATIONS]


def operations(node: Node) -> int:
    """Multiply-accumulates of a matrix product, as float ones of equal time; for other operators
    the number of elements of the result.
    """
    if not (macs := macs_of(node)):
        return node.type.size
    return macs if node.operands[0].type.dtype.is_float else macs // INT8_TIMES
