"""Graphs as text, one line for each node; ``graph.text`` reads it back.

::

    graph 'source hash'
    'x': f32[1x28x28x1] = Input(tensor=TensorType('f32', (1, 28, 28, 1)))
    'w': f32[3x3x1x8] = Constant(value=ArrayMark('f32', (3, 3, 1, 8), '2f0c6b1e9d77'))
    'y': f32[1x26x26x8] = Conv(x='x', w='w')
    output 'y' = 'y'

The type before ``=`` is for people, and checked when read.  Attributes that have the default of
their declaration are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from quantglow.graph.attributes import encode
from quantglow.graph.node import Node, operand_fields


def graph_text(source_hash: str, nodes: Iterable[Node], outputs: Iterable[tuple[str, Node]]) -> str:
    """The text of a graph whose ``nodes`` are in order, operands before users."""
    lines = [f"graph {source_hash!r}"]
    lines += [node_line(node) for node in nodes]
    lines += [f"output {name!r} = {node.name!r}" for name, node in outputs]
    return "\n".join(lines) + "\n"


def node_line(node: Node) -> str:
    """``'name': type = Op(operands and attributes)``"""
    return f"{node.name!r}: {node.type} = {node.op}({', '.join(_arguments(node))})"


def _arguments(node: Node) -> Iterable[str]:
    for name in operand_fields(type(node)):
        value = getattr(node, name)
        if value is not None:
            yield f"{name}={encode(_names(value))}"
    yield from (f"{name}={encode(value)}" for name, value in shown_attributes(node).items())


def shown_attributes(node: Node) -> dict[str, object]:
    """The attributes that differ from the defaults of their declaration."""
    defaults = {field.name: field.default for field in dataclasses.fields(node)}
    return {
        name: value
        for name, value in node.attributes().items()
        if not (type(value) is type(defaults[name]) and value == defaults[name])
    }


def _names(value: Node | tuple[Node, ...]) -> str | tuple[str, ...]:
    return tuple(n.name for n in value) if isinstance(value, tuple) else value.name
