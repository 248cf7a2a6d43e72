"""Conversion of a plan to its int8 graph, and graphs whose inputs and outputs are integers.

``Converter`` rebuilds the float graph by the rules of ``rules``.  With integer inputs and outputs
the caller rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Dequantize, Quantize, Rescale
from quantglow.ir.ops.arithmetic import quantize as quantized_array
from quantglow.ir.types import ElementType
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.rules import Operands, find_rule


class DecidedWeights(Protocol):
    """The integers of a layer that were decided before."""

    def fitting(self, node: Any, x: ElementType) -> Operands | None:
        """The operands ``w`` and ``b`` for an input of type ``x``; None if they do not fit."""


@dataclass
class Converter:
    """Rebuilds the graph as planned.  Each value exists at most once as float and once as int8; a
    conversion is made when the first reader needs it.  ``copies``: float forms of int8 operators
    that bring numbers of inputs to outputs.
    """

    plan: Plan
    per_channel: bool = True
    weights: Mapping[str, DecidedWeights] = field(default_factory=dict)
    reals: dict[Node, Node] = field(default_factory=dict)
    integers: dict[tuple[Node, ElementType], Node] = field(default_factory=dict)
    copies: dict[Node, Node] = field(default_factory=dict)
    names: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        self.names.used |= Names.of(self.plan.graph).used

    def run(self) -> Graph:
        graph = self.plan.graph
        for node in graph.nodes:
            self._convert(node)
        converted = graph.with_outputs(self.exact(node) for _, node in graph.outputs)
        return converted.map_bodies(self._body)

    def _body(self, body: Graph) -> Graph:
        """The body of a loop as its own plan says."""
        plan = self.plan.bodies.get(body)
        if plan is None:
            return body
        return Converter(plan, self.per_channel, self.weights, names=self.names).run()

    def _convert(self, node: Node) -> None:
        rule = find_rule(type(node)) if self.plan.is_int8(node) else None
        if rule is None:
            read = self.exact if node in self.plan.copies else self.real
            self.reals[node] = node.with_operands(tuple(read(o) for o in node.operands))
            return
        converted = rule(node, self)
        if node in self.plan.integer_results:
            self.integers[node, self.element(node)] = converted
        else:
            self.reals[node] = converted
        if node in self.plan.copies:
            copy = node.with_operands(tuple(self.exact(o) for o in node.operands))
            self.copies[node] = replace(copy, name=self.fresh(f"{node.name}:copy"))

    def is_int8(self, node: Node) -> bool:
        """Whether the node computes on int8 operands."""
        return self.plan.is_int8(node)

    def element(self, node: Node) -> ElementType:
        """The int8 type of a value."""
        return self.plan.element_types[node]

    def out(self, node: Node) -> ElementType | None:
        """The int8 type of a node's result, or None if it is only read as float32."""
        return self.element(node) if node in self.plan.integer_results else None

    def fresh(self, name: str) -> str:
        """``name``, numbered if the float graph or this one has it."""
        return self.names.fresh(name)

    def decided_operands(self, node: Node, x: ElementType) -> Operands | None:
        """The integer operands of a layer with input ``x``, if they are known already."""
        weights = self.weights.get(node.name)
        return None if weights is None else weights.fitting(node, x)

    def real(self, node: Node) -> Node:
        """The value as float32."""
        if node not in self.reals:
            stored = self.integers[node, self.element(node)]
            self.reals[node] = Dequantize(name=self.fresh(f"{node.name}:dq"), x=stored)
        return self.reals[node]

    def exact(self, node: Node) -> Node:
        """The value as float32; numbers of inputs that it brings to an output are exact."""
        return self.copies.get(node) or self.real(node)

    def int8(self, node: Node, element: ElementType | None = None) -> Node:
        """The value as int8, with its own parameters or those given."""
        target = element or self.element(node)
        if (node, target) not in self.integers:
            self.integers[node, target] = self._stored_as(node, target)
        return self.integers[node, target]

    def _stored_as(self, node: Node, target: ElementType) -> Node:
        if isinstance(node, Constant):
            value = quantized_array(node.value, target)
            return Constant(name=self.fresh(f"{node.name}:q"), value=value, element=target)
        if target != self.element(node):
            x = self.int8(node)  # before the name: it may have to be made, too
            return Rescale(name=self.fresh(f"{node.name}:q"), x=x, out=target)
        return Quantize(name=self.fresh(f"{node.name}:q"), x=self.reals[node], out=target)


def with_integer_inputs(graph: Graph) -> Graph:
    """The graph without the Quantize nodes of its inputs.

    An input stays float if something reads its floats, or if it is rounded in two ways.
    """
    roundings = {node: _rounding(graph, node) for node in graph.inputs if node.type.dtype.is_float}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        if isinstance(node, Input) and (element := roundings.get(node)) is not None:
            new[node] = replace(node, tensor=node.type.with_element(element))
        elif isinstance(node, Quantize) and not operands[0].type.dtype.is_float:
            new[node] = operands[0]
        else:
            new[node] = node if operands == node.operands else node.with_operands(operands)
    inputs = tuple(node for node in map(new.get, graph.inputs) if isinstance(node, Input))
    return replace(graph.with_outputs(new[node] for _, node in graph.outputs), inputs=inputs)


def _rounding(graph: Graph, value: Node) -> ElementType | None:
    """The only way in which a value is rounded, perhaps behind other orders of its elements."""
    elements = set[ElementType | None]()
    waiting, ends = [value], {node for _, node in graph.outputs}
    while waiting:
        node = waiting.pop()
        readers = graph.users[node]
        elements |= {None} if node in ends or not readers else set()
        for reader in readers:
            if reader.has(Trait.REARRANGES):
                waiting.append(reader)
            else:
                elements.add(reader.out if isinstance(reader, Quantize) else None)
    element = elements.pop() if len(elements) == 1 else None
    return element if element is not None and _is_per_tensor(element) else None


def with_integer_outputs(graph: Graph) -> Graph:
    """The graph without the Dequantize nodes of its outputs; other outputs stay as they are."""
    names = Names.of(graph)
    return graph.with_outputs(_integers(node, names) or node for _, node in graph.outputs)


def _integers(node: Node, names: Names) -> Node | None:
    """The integers of a value, perhaps in another order of their elements."""
    if isinstance(node, Dequantize):
        return node.x if _is_per_tensor(node.x.type.element) else None
    if not node.has(Trait.REARRANGES) or not node.type.dtype.is_float:
        return None
    inner = _integers(node.operands[0], names)
    if inner is None:
        return None
    return replace(node.with_operands((inner,)), name=names.fresh(f"{node.name}:q"))


def _is_per_tensor(element: ElementType) -> bool:
    """Whether one scale holds for all elements."""
    return element.quant is not None and element.quant.axis is None
