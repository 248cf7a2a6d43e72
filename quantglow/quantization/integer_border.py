"""Graphs whose inputs and outputs are the integers themselves: the caller rounds."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Input, Node
from quantglow.graph.traits import Trait
from quantglow.ops import Dequantize, Quantize
from quantglow.types import ElementType


def with_integer_inputs(graph: Graph) -> Graph:
    """The graph without the Quantize nodes of its inputs.

    An input stays float if something reads its floats, or if it is rounded in two ways.
    """
    found = {node: _rounding(graph, node) for node in graph.inputs if node.type.dtype.is_float}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        if isinstance(node, Input) and (element := found.get(node)) is not None:
            new[node] = replace(node, tensor=node.type.with_element(element))
        elif isinstance(node, Quantize) and not operands[0].type.dtype.is_float:
            new[node] = operands[0]
        else:
            new[node] = node if operands == node.operands else node.with_operands(operands)
    inputs = tuple(node for node in map(new.get, graph.inputs) if isinstance(node, Input))
    return replace(graph.with_outputs(new[node] for _, node in graph.outputs), inputs=inputs)


def _rounding(graph: Graph, value: Node) -> ElementType | None:
    """The only way in which a value is rounded, perhaps behind other orders of its elements."""
    found = set[ElementType | None]()
    waiting, ends = [value], {node for _, node in graph.outputs}
    while waiting:
        node = waiting.pop()
        readers = graph.users[node]
        found |= {None} if node in ends or not readers else set()
        for reader in readers:
            if reader.has(Trait.REARRANGES):
                waiting.append(reader)
            else:
                found.add(reader.out if isinstance(reader, Quantize) else None)
    element = found.pop() if len(found) == 1 else None
    return element if element is not None and is_per_tensor(element) else None


def with_integer_outputs(graph: Graph) -> Graph:
    """The graph without the Dequantize nodes of its outputs; other outputs stay as they are."""
    names = Names.of(graph)
    return graph.with_outputs(_integers(node, names) or node for _, node in graph.outputs)


def _integers(node: Node, names: Names) -> Node | None:
    """The integers of a value, perhaps in another order of their elements."""
    if isinstance(node, Dequantize):
        return node.x if is_per_tensor(node.x.type.element) else None
    if not node.has(Trait.REARRANGES) or not node.type.dtype.is_float:
        return None
    inner = _integers(node.operands[0], names)
    if inner is None:
        return None
    return replace(node.with_operands((inner,)), name=names.fresh(f"{node.name}:q"))


def is_per_tensor(element: ElementType) -> bool:
    """Whether one scale holds for all elements."""
    return element.quant is not None and element.quant.axis is None
