"""Graphs as text, one line for each node; ``graph.text`` reads it back.

::

    graph 'source hash'
    declared 'x': float16
    'x': f32[1x28x28x1] = Input(tensor=TensorType('f32', (1, 28, 28, 1)))
    'w': f32[3x3x1x8] = Constant(value=ArrayMark('f32', (3, 3, 1, 8), '2f0c6b1e9d77'))
    'y': f32[1x26x26x8] = Conv(x='x', w='w')
    output 'y' = 'y'

A line ``declared`` has the float type of an input or output that is computed as float32.  The type
before ``=`` is for people, and checked when read.  Attributes that have the default of their
declaration are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from quantglow.graph.attributes import encode
from quantglow.graph.node import Node, operand_fields


def as_it_is(value: object) -> object:
    """The attribute value itself."""
    return value


def graph_text(
    source_hash: str,
    declared: Mapping[str, str],
    nodes: Iterable[Node],
    outputs: Iterable[tuple[str, Node]],
    shown: Callable[[object], object] = as_it_is,
) -> str:
    """The text of a graph whose ``nodes`` are in order, operands before users.

    ``shown`` gives the text of an attribute value.
    """
    lines = [f"graph {source_hash!r}"]
    lines += [f"declared {name!r}: {kind}" for name, kind in declared.items()]
    lines += [node_line(node, shown) for node in nodes]
    lines += [f"output {name!r} = {node.name!r}" for name, node in outputs]
    return "\n".join(lines) + "\n"


def node_line(node: Node, shown: Callable[[object], object] = as_it_is) -> str:
    """``'name': type = Op(operands and attributes)``"""
    return f"{node.name!r}: {node.type} = {node.op}({', '.join(_arguments(node, shown))})"


def _arguments(node: Node, shown: Callable[[object], object]) -> Iterable[str]:
    for name in operand_fields(type(node)):
        value = getattr(node, name)
        if value is not None:
            yield f"{name}={encode(_names(value))}"
    yield from (f"{name}={encode(shown(v))}" for name, v in shown_attributes(node).items())


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
