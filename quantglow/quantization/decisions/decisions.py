"""The decisions of the quantizer about a model, by value name, so that they hold at every shape.

A model with free dimensions is imported again for a new shape and runs through the same passes,
which are deterministic and keep the names of ONNX values.  The decisions made at one shape are
looked up by name at the others; nothing is profiled or rounded again.  Values and operators that
only another shape has (helper values of a pass, a layer that was folded elsewhere) follow fixed
rules:

* an operator that keeps the parameters of its operand keeps them, in int8 if the operand is;
* the result of a product is stored as integers, or is float, as at the calibrated shape;
* a product of known precision whose weights have another layout or input gets them rounded anew;
* every other operator without a decision computes in float;
* a value that cannot be rescaled there has no range, because the known one is of rescaled values;
* a value that a mask or padding of the model may make infinite or NaN has none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.graph.traits import Trait
from quantglow.ops.arithmetic import is_integer
from quantglow.ops.contraction import Contraction
from quantglow.options import QuantizationConfig
from quantglow.passes.fuse_activation import fuse_functions
from quantglow.profiling import Range
from quantglow.quantization.convert.converter import Converter
from quantglow.quantization.convert.rules import Operands
from quantglow.quantization.equalize.equalization import Factors, rescaled, unscalable
from quantglow.quantization.equalize.input_grid import Grids, aligned
from quantglow.quantization.plan.bodies import with_bodies
from quantglow.quantization.plan.eligibility import ineligibility
from quantglow.quantization.plan.ends import PRODUCTS
from quantglow.quantization.plan.int16 import reader_ineligibility
from quantglow.quantization.plan.masks import masked_values
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.plan.tensor_ranges import element_of
from quantglow.quantization.search.candidate import Candidate
from quantglow.types import DType, ElementType

UNDECIDED = "it is not part of the model at the shapes it was calibrated at"
NO_RANGE = "there is no range for one of its tensors at these shapes"

TOLERANCE = 0.01
"""Maximum relative difference of sizes: a tensor that a file stores as codes is not quite the real
one."""

Sizes = tuple[float, float]
"""Root mean squares of a layer's weights and of its bias."""


@dataclass(frozen=True)
class LayerWeights:
    """The integers of a layer, and the input type for which its bias was rounded."""

    w: Constant
    b: Constant | None
    x: ElementType

    def fitting(self, node: Any, x: ElementType) -> Operands | None:
        """The operands for a layer; those of a Gemm fit a 1x1 convolution, too.  None if they do
        not fit.
        """
        wanted, found = node.w.type.shape, self.w.type.shape
        if x != self.x or _core(wanted) != _core(found):
            return None
        return {"w": _reshaped(self.w, wanted), "b": self.b}


@dataclass(frozen=True)
class Decisions:
    """All decisions about a model.

    ``reasons``: float operator -> why; ``int8``: the other operators; ``elements``: value -> its
    integer type; ``weights``: by layer; ``factors``: by rescaled value; ``grids``: by input;
    ``fused``: functions that layers apply; ``stored``: products whose results are integers (old
    files do not know them); ``sizes``: by layer, of the real weights and biases that were rounded.
    """

    reasons: Mapping[str, str]
    int8: frozenset[str]
    elements: Mapping[str, ElementType]
    weights: Mapping[str, LayerWeights]
    quantize_output: bool = False
    symmetric: bool = False
    per_channel: bool = True
    factors: Factors = field(default_factory=dict)
    grids: Grids = field(default_factory=dict)
    fused: frozenset[str] = frozenset()
    stored: frozenset[str] | None = None
    sizes: Mapping[str, Sizes] = field(default_factory=dict)

    @staticmethod
    def of(
        plan: Plan, result: Graph, candidate: Candidate, config: QuantizationConfig
    ) -> Decisions:
        """The decisions that led to ``result``, the int8 graph of ``plan``."""
        profile = candidate.profile
        elsewhere = profile.histograms.keys() - {node.name for node in plan.graph.nodes}
        elements = {
            name: element
            for name in sorted(elsewhere)
            if (element := element_of(profile, config, name)) is not None
        }
        elements.update((node.name, element) for node, element in plan.elements.items())
        return Decisions(
            reasons={node.name: reason for node, reason in plan.reasons.items()},
            int8=frozenset(n.name for n in plan.graph.compute_nodes() if plan.is_int8(n)),
            elements=elements,
            weights=weights_of(result),
            quantize_output=plan.quantize_output,
            symmetric=config.symmetric,
            per_channel=config.per_channel,
            factors=candidate.factors,
            grids=candidate.grids,
            fused=candidate.fused,
            stored=frozenset(n.name for n in plan.integer_results if isinstance(n, PRODUCTS)),
            sizes={node.name: sizes_of(node) for node in layers_of(plan)},
        )

    def apply(self, graph: Graph) -> Graph:
        """The int8 graph of the optimized float graph of the same model at any shape."""
        graph = aligned(fuse_functions(graph, self.fused), self.grids)[0]
        unknown = unscalable(graph, self.factors)
        elements = {name: e for name, e in self.elements.items() if name not in unknown}
        plan = replace(self, elements=elements).plan(rescaled(graph, self.factors))
        layers = {node.name: node for node in layers_of(plan)}
        weights = {n: w for n, w in self.weights.items() if n in layers and self._holds(layers[n])}
        return Converter(plan, self.per_channel, weights).run()

    def _holds(self, layer: Contraction) -> bool:
        """Whether the weights of a layer are the rounded ones: passes may scale them by the size of
        an image.  Differences that rounding hides do not count.  Old files know no sizes.
        """
        known = self.sizes.get(layer.name)
        return known is None or bool(np.allclose(sizes_of(layer), known, rtol=TOLERANCE, atol=0))

    def plan(self, graph: Graph) -> Plan:
        """The plan for a graph, from the decisions by name and the rules above."""
        reasons: dict[Node, str] = {}
        elements: dict[Node, ElementType] = {}
        special = masked_values(graph)
        for node in graph.nodes:
            element = None if node in special else self._element(node, elements)
            if element is not None:
                elements[node] = element
            if node.operands and (reason := self._reason(node, elements, reasons)):
                reasons[node] = reason
        groups = {node: node for node in elements}
        plan = Plan(graph, reasons, elements, groups, self.quantize_output, stored=self.stored)
        return with_bodies(plan, self.elements.get, self.reasons)

    def _element(self, node: Node, elements: Mapping[Node, ElementType]) -> ElementType | None:
        if not node.type.dtype.is_float:
            return None
        if node.name in self.elements:
            return self.elements[node.name]
        if isinstance(node, Constant) and node.value.size:
            seen = Range(float(node.value.min()), float(node.value.max()))
            return activation_element(seen, self.symmetric)
        return elements.get(node.operands[0]) if node.has(Trait.KEEPS_QUANTIZATION) else None

    def _reason(
        self, node: Node, elements: Mapping[Node, ElementType], reasons: Mapping[Node, str]
    ) -> str:
        reason = self.reasons.get(node.name) or ineligibility(node)
        if reason:
            return reason
        if any(v not in elements for v in (node, *node.operands) if v.type.dtype.is_float):
            return NO_RANGE
        wide = sum(o in elements and elements[o].dtype is DType.I16 for o in node.operands)
        if wide and (reason := reader_ineligibility(node, wide)):
            return f"it {reason} at these shapes"
        is_moved = node.has(Trait.KEEPS_QUANTIZATION) and node.operands[0] not in reasons
        follows = is_moved and not self._is_float_result(node.operands[0])
        return "" if node.name in self.int8 or follows else UNDECIDED

    def _is_float_result(self, node: Node) -> bool:
        return (
            self.stored is not None
            and isinstance(node, PRODUCTS)
            and node.name in self.int8 - self.stored
        )


def layers_of(plan: Plan) -> list[Contraction]:
    """The layers whose weights are integers, those in bodies included."""
    own = [n for n in plan.graph.nodes if isinstance(n, Contraction) and plan.is_int8(n)]
    return [*own, *(layer for body in plan.bodies.values() for layer in layers_of(body))]


def sizes_of(layer: Any) -> Sizes:
    """Root mean squares of the real weights of a layer and of its bias; 0 without a bias."""
    found = (c.value.reshape(-1) for c in (layer.w, layer.b) if c is not None and c.value.size)
    with np.errstate(over="ignore"):
        sizes = [float(np.sqrt(np.vdot(value, value) / value.size)) for value in found]
    return sizes[0] if sizes else 0.0, sizes[1] if len(sizes) > 1 else 0.0


def weights_of(graph: Graph) -> dict[str, LayerWeights]:
    """The integers of every layer of an int8 graph, those in bodies included."""
    found = {}
    for node in graph.every_node():
        if isinstance(node, Contraction) and is_integer(node.x.type):
            w, b = node.w, node.b
            assert isinstance(w, Constant)
            assert b is None or isinstance(b, Constant)
            found[node.name] = LayerWeights(w, b, node.x.type.element)
    return found


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _reshaped(w: Constant, shape: tuple[int, ...]) -> Constant:
    """Weights per channel of the last axis under a shape with the same core."""
    if w.type.shape == shape:
        return w
    quant = w.type.quant
    assert quant is not None
    element = ElementType(w.type.dtype, replace(quant, axis=len(shape) - 1))
    return Constant(name=w.name, value=w.value.reshape(shape), element=element)
