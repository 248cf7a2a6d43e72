"""The table of lowering rules, the primitive operators, and unique names of helpers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    AveragePool,
    Concat,
    Conv,
    Elementwise,
    Expand,
    External,
    Gather,
    GroupedMatMul,
    Loop,
    MatMul,
    MaxPool,
    Pad,
    QuantizeRows,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    Resize,
    RowMap,
    Scatter,
    Slice,
    Softmax,
    Table,
    TopK,
    Transpose,
)

AnyNode = TypeVar("AnyNode", bound=Node)
Rule = Callable[[AnyNode], Node | None]

lowering_rules: dict[type[Node], Callable[[Node], Node | None]] = {}
"""The rule of an operator, or of a base class for all operators below it: its equal in simpler
operators, or None if it is primitive."""

COMPUTE_PRIMITIVES: tuple[type[Node], ...] = (
    Conv,
    MatMul,
    MaxPool,
    AveragePool,
    ReduceMean,
    ReduceSum,
    ReduceMax,
    ReduceMin,
    Softmax,
    Resize,
    Table,
    Elementwise,
    RowMap,
    Gather,
    Scatter,
    TopK,
    QuantizeRows,
    GroupedMatMul,
)
"""Operators that a backend computes, besides ``copy`` and ``fill``."""

VIEW_PRIMITIVES: tuple[type[Node], ...] = (Reshape, Transpose, Slice, Expand, Concat, Pad)
"""Operators that program generation turns into views, copies and fills."""

CONTROL_PRIMITIVES: tuple[type[Node], ...] = (Loop,)
"""Operators that program generation turns into instructions which are repeated."""

FALLBACK: tuple[type[Node], ...] = (External,)
"""Operators that no backend has to compute: partitioning hands them to another runtime before
lowering.  The reference backend runs them as the interpreter does."""

LEAVES: tuple[type[Node], ...] = (Input, Constant)


def lowers(cls: type[AnyNode]) -> Callable[[Rule[AnyNode]], Rule[AnyNode]]:
    """Register the rule for one operator class."""

    def register(rule: Rule[AnyNode]) -> Rule[AnyNode]:
        lowering_rules[cls] = rule  # type: ignore[assignment]
        return rule

    return register


def find_rule(kind: type[Node]) -> Callable[[Node], Node | None] | None:
    """The rule of the operator or of its nearest base class that has one."""
    return next((lowering_rules[c] for c in kind.__mro__ if c in lowering_rules), None)


def tag(node: Node, role: str) -> str:
    """The name of a helper node: unique because the owner's name is."""
    return f"{node.name}:{role}"


def unique_names(graph: Graph) -> Graph:
    """Number helper nodes whose name is taken."""
    present, assigned = {node.name for node in graph.nodes}, set[str]()

    def renamed(node: Node) -> Node:
        name, number = node.name, 2
        while name in assigned or (number > 2 and name in present):
            name, number = f"{node.name}_{number}", number + 1
        assigned.add(name)
        return node if name == node.name else replace(node, name=name)

    return graph.rebuild(renamed)
