"""The quantizer: a float graph and its profile to an int8 graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quantglow import debug
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.ops import Dequantize, Quantize, Rescale
from quantglow.ops.arithmetic import quantize as quantized_array
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, feeds_of
from quantglow.quantization.choose_int16 import with_chosen_int16
from quantglow.quantization.ladder import UNRAISED, Raised
from quantglow.quantization.plan import Plan, make_plan
from quantglow.quantization.preparation import Prepared, prepare
from quantglow.quantization.recovery import Memory, Reservoir, capacity, recover
from quantglow.quantization.report import NodeReport, QuantizationReport
from quantglow.quantization.rules import rule_of
from quantglow.quantization.widths import AUTO, with_named_int16
from quantglow.types import ElementType

Converted = Callable[[Graph], object]
"""Is shown the int8 graph before its weights are rounded against samples, which takes long; nothing
but the values of Constants changes then, and a layer without a bias may get one."""


def quantize(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    imported: Graph | None = None,
    data: Any = None,
) -> Graph:
    """The int8 graph of an optimized float graph; names and outputs stay.

    Raises ``ProfileMismatchError`` for the profile of another model and ``IgnoredScopeError`` for
    an exclusion that matches nothing.  ``imported``, the graph before optimization, lets
    exclusions name nodes that were fused away.  ``data``, calibration samples as ``profile`` takes
    them, turns on ``preparation`` (equalization, ranges by their effect) and accuracy recovery; see
    ``quantglow.quantization.recovery``.
    """
    return quantize_with_report(graph, profile, config, imported, data)[0]


def quantize_with_report(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    imported: Graph | None = None,
    data: Any = None,
    progress: bool | str = "auto",
) -> tuple[Graph, QuantizationReport]:
    """``quantize``, and for every operator its precision and why it stayed float."""
    config = config or QuantizationConfig()
    samples = samples_of(data, graph, config.seed)
    prepared = prepare(graph, profile, config, samples, imported, progress)
    result, plan = quantize_prepared(prepared, config, imported, samples, progress)
    return result, report_of(plan)


def samples_of(data: Any, graph: Graph, seed: int = 0) -> list[Feeds]:
    """As many of the samples, drawn by ``seed``, as memory has room for; none of None."""
    if data is None:
        return []
    return Reservoir(capacity(graph), seed).extend(feeds_of(data, graph.signature)).kept


def quantize_prepared(
    prepared: Prepared,
    config: QuantizationConfig,
    imported: Graph | None = None,
    samples: Sequence[Feeds] = (),
    progress: bool | str = "auto",
    memory: Memory | None = None,
    raised: Raised = UNRAISED,
    converted: Converted | None = None,
) -> tuple[Graph, Plan]:
    """``quantize`` of what ``prepare`` made of a graph, and the plan that it followed.

    ``memory``: of earlier calls with the same samples, so that no layer is recovered twice;
    ``raised``: what accuracy control takes out of int8; ``converted``: see ``Converted``.
    """
    graph, profile = prepared.graph, prepared.profile
    plan = make_plan(graph, profile, config, imported, prepared.ranges, raised.to_float)
    plan = with_named_int16(plan, profile, config, imported, strict=not raised.to_float)
    if samples and config.int16_activations == AUTO:
        plan = with_chosen_int16(plan, profile, config, samples, progress)
    plan = raised.widened(plan, profile, config)
    result = Converter(plan, config.per_channel).run()
    if samples and config.recovery:
        if converted is not None:
            converted(result)
        techniques = config.recovery
        result = recover(graph, result, samples, techniques, config.per_channel, progress, memory)
    if debug.verifying():
        result.verify()
    debug.dump_ir("quantize", result)
    return result, plan


def report_of(plan: Plan) -> QuantizationReport:
    """For every operator its precision and why it stayed float."""
    return QuantizationReport(
        tuple(
            NodeReport(n.name, n.op, plan.precision(n), plan.reasons.get(n, ""))
            for n in plan.graph.compute_nodes()
        )
    )


class DecidedWeights(Protocol):
    """The integers of a layer, from before."""

    def fitting(self, node: Any, x: ElementType) -> dict[str, Constant | None] | None:
        """Its operands ``w`` and ``b`` for an input of type ``x``; None if they do not fit."""


@dataclass
class Converter:
    """Rebuilds the graph as planned.  Each value exists once as float and once as int8, at most;
    a conversion is made when the first reader asks for it.
    """

    plan: Plan
    per_channel: bool = True
    weights: Mapping[str, DecidedWeights] = field(default_factory=dict)
    reals: dict[Node, Node] = field(default_factory=dict)
    integers: dict[tuple[Node, ElementType], Node] = field(default_factory=dict)

    def run(self) -> Graph:
        graph = self.plan.graph
        for node in graph.nodes:
            self._convert(node)
        return graph.with_outputs(self.real(node) for _, node in graph.outputs)

    def _convert(self, node: Node) -> None:
        rule = rule_of(type(node)) if self.plan.is_int8(node) else None
        if rule is None:
            self.reals[node] = node.with_operands(tuple(self.real(o) for o in node.operands))
            return
        made = rule(node, self)
        if node in self.plan.integer_results:
            self.integers[node, self.element(node)] = made
        else:
            self.reals[node] = made

    def is_int8(self, node: Node) -> bool:
        """Whether the node computes on int8 operands."""
        return self.plan.is_int8(node)

    def element(self, node: Node) -> ElementType:
        """The int8 type of a value."""
        return self.plan.elements[node]

    def out(self, node: Node) -> ElementType | None:
        """The int8 type of a node's result, or None if it is only read as float32."""
        return self.element(node) if node in self.plan.integer_results else None

    def decided(self, node: Node, x: ElementType) -> dict[str, Constant | None] | None:
        """The integer operands of a layer with input ``x``, if they are known already."""
        known = self.weights.get(node.name)
        return None if known is None else known.fitting(node, x)

    def real(self, node: Node) -> Node:
        """The value as float32."""
        if node not in self.reals:
            stored = self.integers[node, self.element(node)]
            self.reals[node] = Dequantize(name=f"{node.name}:dq", x=stored)
        return self.reals[node]

    def int8(self, node: Node, element: ElementType | None = None) -> Node:
        """The value as int8, with its own parameters or those given."""
        wanted = element or self.element(node)
        if (node, wanted) not in self.integers:
            self.integers[node, wanted] = self._converted(node, wanted)
        return self.integers[node, wanted]

    def _converted(self, node: Node, wanted: ElementType) -> Node:
        if isinstance(node, Constant):
            value = quantized_array(node.value, wanted)
            return Constant(name=self._new_name(node), value=value, element=wanted)
        if wanted != self.element(node):
            x = self.int8(node)  # before the name: it may have to be made, too
            return Rescale(name=self._new_name(node), x=x, out=wanted)
        return Quantize(name=self._new_name(node), x=self.reals[node], out=wanted)

    def _new_name(self, node: Node) -> str:
        others = sum(key is node for key, _ in self.integers)
        return f"{node.name}:q{others or ''}"
