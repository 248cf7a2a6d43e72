"""Graphs as text, one line for each node; ``graph.text`` reads it back.

::

    graph 'source hash'
    declared 'x': float16
    'x': f32[1x28x28x1] = Input(tensor=TensorType('f32', (1, 28, 28, 1)))
    'w': f32[3x3x1x8] = Constant(value=ArrayMark('f32', (3, 3, 1, 8), '2f0c6b1e9d77'))
    'y': f32[1x26x26x8] = Conv(x='x', w='w')
    output 'y' = 'y'

The body of a loop stands before the first node that runs it, under its label::

    body 'state'
      't': f32[8] = Input(tensor=TensorType('f32', (8,)))
      'state': f32[8] = Tanh(x='t')
      output 'state' = 'state'
    'y': f32[8] = Loop(carried=('x',), sliced=(), captured=(), body=Graph('state'), trips=9)

A line ``declared`` has the float type of an input or output that is computed as float32.  The type
before ``=`` is for people, and checked when read.  Attributes that have the default of their
declaration are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from quantglow.graph.attributes import encode
from quantglow.graph.node import Node, operand_fields

if TYPE_CHECKING:
    from quantglow.graph.graph import Graph


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
    lines += inner_lines(nodes, outputs, shown)
    return "\n".join(lines) + "\n"


def inner_lines(
    nodes: Iterable[Node],
    outputs: Iterable[tuple[str, Node]],
    shown: Callable[[object], object] = as_it_is,
) -> Iterator[str]:
    """A line for each node and output; bodies stand before the first node that runs them."""
    bodies: set[Graph] = set()
    for node in nodes:
        for body in node.bodies:
            if body not in bodies:
                bodies.add(body)
                yield f"body {body.label!r}"
                yield from (f"  {line}" for line in inner_lines(body.nodes, body.outputs, shown))
        yield node_line(node, shown)
    yield from (f"output {name!r} = {node.name!r}" for name, node in outputs)


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
        if not (type(value) is type(defaults[name]) and encode(value) == encode(defaults[name]))
    }


def _names(value: Node | tuple[Node, ...]) -> str | tuple[str, ...]:
    return tuple(n.name for n in value) if isinstance(value, tuple) else value.name
