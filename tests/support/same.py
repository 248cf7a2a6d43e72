"""Structural equality of graphs and programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.program.program import Buffer, Compute, Fill, Instruction, Program, Repeat, View


def same_graph(a: Graph, b: Graph) -> bool:
    """The same nodes, in order, with equal operands, attributes and names."""
    if len(a.nodes) != len(b.nodes) or a.source_hash != b.source_hash:
        return False
    twins = dict(zip(a.nodes, b.nodes, strict=True))
    borders = [tuple(twins[i] for i in a.inputs) == b.inputs]
    borders += [dict(a.declared) == dict(b.declared)]
    borders += [tuple((name, twins[node]) for name, node in a.outputs) == b.outputs]
    return all(borders) and all(same_node(x, y, twins) for x, y in twins.items())


def same_node(a: Node, b: Node, twins: dict[Node, Node]) -> bool:
    same_class = type(a) is type(b) and (a.name, a.type) == (b.name, b.type)
    operands = tuple(twins[o] for o in a.operands) == b.operands
    return same_class and operands and same_attributes(a, b)


def same_attributes(a: Node, b: Node) -> bool:
    left, right = a.attributes(), b.attributes()
    return left.keys() == right.keys() and all(same_value(left[k], right[k]) for k in left)


def same_value(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def same_program(a: Program, b: Program) -> bool:
    """The same instructions on equal views of equal buffers."""
    if len(a.instructions) != len(b.instructions) or len(a.buffers) != len(b.buffers):
        return False
    borders = [
        [n for n, _ in x] == [n for n, _ in y]
        and all(same_view(v, w) for (_, v), (_, w) in zip(x, y, strict=True))
        for x, y in ((a.inputs, b.inputs), (a.outputs, b.outputs))
    ]
    steps = zip(a.instructions, b.instructions, strict=True)
    return all(borders) and all(same_instruction(x, y) for x, y in steps)


def same_instruction(a: Instruction, b: Instruction) -> bool:
    if type(a) is not type(b) or len(a.views) != len(b.views):
        return False
    if isinstance(a, Compute) and isinstance(b, Compute):
        types = [o.type for o in a.op.operands] == [o.type for o in b.op.operands]
        if not (types and type(a.op) is type(b.op) and same_attributes(a.op, b.op)):
            return False
    if isinstance(a, Repeat) and isinstance(b, Repeat):
        pairs = zip(a.steps, b.steps, strict=True)
        if (a.name, a.trips) != (b.name, b.trips) or not all(same_instruction(*p) for p in pairs):
            return False
    if isinstance(a, Fill) and isinstance(b, Fill) and a.attributes != b.attributes:
        return False
    buffers: list[tuple[Buffer, Buffer]] = []
    if hasattr(a, "buffer"):
        buffers.append((a.buffer, b.buffer))  # type: ignore[attr-defined]
    views = zip(a.views, b.views, strict=True)
    return all(same_buffer(x, y) for x, y in buffers) and all(same_view(x, y) for x, y in views)


def same_view(a: View, b: View) -> bool:
    placed = (a.type, a.strides, a.offset, a.advance) == (b.type, b.strides, b.offset, b.advance)
    return placed and same_buffer(a.buffer, b.buffer)


def same_buffer(a: Buffer, b: Buffer) -> bool:
    facts = (a.name, a.kind, a.nbytes) == (b.name, b.kind, b.nbytes)
    return facts and same_value(a.value, b.value)
