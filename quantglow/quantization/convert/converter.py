"""The int8 graph of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Constant, Node
from quantglow.ops import Dequantize, Quantize, Rescale
from quantglow.ops.arithmetic import quantize as quantized_array
from quantglow.quantization.convert.rules import Operands, rule_of
from quantglow.quantization.plan.plan import Plan
from quantglow.types import ElementType


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
        self.names.taken |= Names.of(self.plan.graph).taken

    def run(self) -> Graph:
        graph = self.plan.graph
        for node in graph.nodes:
            self._convert(node)
        made = graph.with_outputs(self.exact(node) for _, node in graph.outputs)
        return made.map_bodies(self._body)

    def _body(self, body: Graph) -> Graph:
        """The body of a loop as its own plan says."""
        plan = self.plan.bodies.get(body)
        if plan is None:
            return body
        return Converter(plan, self.per_channel, self.weights, names=self.names).run()

    def _convert(self, node: Node) -> None:
        rule = rule_of(type(node)) if self.plan.is_int8(node) else None
        if rule is None:
            read = self.exact if node in self.plan.copies else self.real
            self.reals[node] = node.with_operands(tuple(read(o) for o in node.operands))
            return
        made = rule(node, self)
        if node in self.plan.integer_results:
            self.integers[node, self.element(node)] = made
        else:
            self.reals[node] = made
        if node in self.plan.copies:
            copy = node.with_operands(tuple(self.exact(o) for o in node.operands))
            self.copies[node] = replace(copy, name=self.fresh(f"{node.name}:copy"))

    def is_int8(self, node: Node) -> bool:
        """Whether the node computes on int8 operands."""
        return self.plan.is_int8(node)

    def element(self, node: Node) -> ElementType:
        """The int8 type of a value."""
        return self.plan.elements[node]

    def out(self, node: Node) -> ElementType | None:
        """The int8 type of a node's result, or None if it is only read as float32."""
        return self.element(node) if node in self.plan.integer_results else None

    def fresh(self, name: str) -> str:
        """``name``, numbered if the float graph or this one has it."""
        return self.names.fresh(name)

    def decided(self, node: Node, x: ElementType) -> Operands | None:
        """The integer operands of a layer with input ``x``, if they are known already."""
        known = self.weights.get(node.name)
        return None if known is None else known.fitting(node, x)

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
        wanted = element or self.element(node)
        if (node, wanted) not in self.integers:
            self.integers[node, wanted] = self._converted(node, wanted)
        return self.integers[node, wanted]

    def _converted(self, node: Node, wanted: ElementType) -> Node:
        if isinstance(node, Constant):
            value = quantized_array(node.value, wanted)
            return Constant(name=self.fresh(f"{node.name}:q"), value=value, element=wanted)
        if wanted != self.element(node):
            x = self.int8(node)  # before the name: it may have to be made, too
            return Rescale(name=self.fresh(f"{node.name}:q"), x=x, out=wanted)
        return Quantize(name=self.fresh(f"{node.name}:q"), x=self.reals[node], out=wanted)
