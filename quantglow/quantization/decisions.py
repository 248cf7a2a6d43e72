"""Decisions of the quantizer by value name, valid at every shape, and their JSON.

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

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.arithmetic import is_integer
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.symbolic.size import FixedShape
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.profiling import Range
from quantglow.quantization.converter import Converter
from quantglow.quantization.equalize.equalization import Factors, rescale, unscalable
from quantglow.quantization.equalize.input_grid import Grids, align_inputs
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.eligibility import ineligibility
from quantglow.quantization.plan.int16 import reader_ineligibility
from quantglow.quantization.plan.network_ends import PRODUCTS
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.plan import Plan, with_bodies
from quantglow.quantization.plan.tensor_ranges import calibrated_element, masked_values
from quantglow.quantization.rules import Operands
from quantglow.quantization.search.trials import Candidate
from quantglow.support.arrays import Array
from quantglow.transforms.float.fusion import fuse_functions

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
        shape, decided_shape = node.w.type.fixed_shape, self.w.type.fixed_shape
        if x != self.x or _core(shape) != _core(decided_shape):
            return None
        return {"w": _reshape(self.w, shape), "b": self.b}


@dataclass(frozen=True)
class Decisions:
    """All decisions about a model.

    ``reasons``: float operator -> why; ``int8``: the other operators; ``element_types``: value ->
    its integer type; ``weights``: by layer; ``factors``: by rescaled value; ``grids``: by input;
    ``fused``: functions that layers apply; ``stored``: products whose results are integers (old
    files do not know them); ``sizes``: by layer, of the real weights and biases that were rounded.
    """

    reasons: Mapping[str, str]
    int8: frozenset[str]
    element_types: Mapping[str, ElementType]
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
            if (element := calibrated_element(profile, config, name)) is not None
        }
        elements.update((node.name, element) for node, element in plan.element_types.items())
        return Decisions(
            reasons={node.name: reason for node, reason in plan.reasons.items()},
            int8=frozenset(n.name for n in plan.graph.compute_nodes() if plan.is_int8(n)),
            element_types=elements,
            weights=_layer_weights(result),
            quantize_output=plan.quantize_output,
            symmetric=config.symmetric,
            per_channel=config.per_channel,
            factors=candidate.factors,
            grids=candidate.grids,
            fused=candidate.fused,
            stored=frozenset(n.name for n in plan.integer_results if isinstance(n, PRODUCTS)),
            sizes={node.name: weight_sizes(node) for node in _int8_layers(plan)},
        )

    def apply(self, graph: Graph) -> Graph:
        """The int8 graph of the optimized float graph of the same model at any shape."""
        graph = align_inputs(fuse_functions(graph, self.fused), self.grids)[0]
        unknown = unscalable(graph, self.factors)
        elements = {name: e for name, e in self.element_types.items() if name not in unknown}
        plan = replace(self, element_types=elements).plan(rescale(graph, self.factors))
        layers = {node.name: node for node in _int8_layers(plan)}
        weights = {n: w for n, w in self.weights.items() if n in layers and self._holds(layers[n])}
        return Converter(plan, self.per_channel, weights).run()

    def _holds(self, layer: Contraction) -> bool:
        """Whether the weights of a layer are the rounded ones: passes may scale them by the size of
        an image.  Differences that rounding hides do not count.  Old files know no sizes.
        """
        sizes = self.sizes.get(layer.name)
        return sizes is None or bool(
            np.allclose(weight_sizes(layer), sizes, rtol=TOLERANCE, atol=0)
        )

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
        return with_bodies(plan, self.element_types.get, self.reasons)

    def _element(self, node: Node, elements: Mapping[Node, ElementType]) -> ElementType | None:
        if not node.type.dtype.is_float:
            return None
        if node.name in self.element_types:
            return self.element_types[node.name]
        if isinstance(node, Constant) and node.value.size:
            extremes = Range(float(node.value.min()), float(node.value.max()))
            return activation_element(extremes, self.symmetric)
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


def _int8_layers(plan: Plan) -> list[Contraction]:
    """The layers whose weights are integers, those in bodies included."""
    layers = [n for n in plan.graph.nodes if isinstance(n, Contraction) and plan.is_int8(n)]
    return [*layers, *(layer for body in plan.bodies.values() for layer in _int8_layers(body))]


def weight_sizes(layer: Any) -> Sizes:
    """Root mean squares of the real weights of a layer and of its bias; 0 without a bias."""
    values = (c.value.reshape(-1) for c in (layer.w, layer.b) if c is not None and c.value.size)
    with np.errstate(over="ignore"):
        sizes = [float(np.sqrt(np.vdot(value, value) / value.size)) for value in values]
    return sizes[0] if sizes else 0.0, sizes[1] if len(sizes) > 1 else 0.0


def _layer_weights(graph: Graph) -> dict[str, LayerWeights]:
    """The integers of every layer of an int8 graph, those in bodies included."""
    weights = {}
    for node in graph.every_node():
        if isinstance(node, Contraction) and is_integer(node.x.type):
            w, b = node.w, node.b
            assert isinstance(w, Constant)
            assert b is None or isinstance(b, Constant)
            weights[node.name] = LayerWeights(w, b, node.x.type.element)
    return weights


def _core(shape: FixedShape) -> FixedShape:
    """The shape without leading ones."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _reshape(w: Constant, shape: FixedShape) -> Constant:
    """Weights per channel of the last axis under a shape with the same core."""
    if w.type.fixed_shape == shape:
        return w
    quant = w.type.quant
    assert quant is not None
    element = ElementType(w.type.dtype, replace(quant, axis=len(shape) - 1))
    return Constant(name=w.name, value=w.value.reshape(shape), element=element)


def to_json(decisions: Decisions) -> dict[str, Any]:
    """The decisions in types that ``json`` writes."""
    return {
        "reasons": dict(decisions.reasons),
        "int8": sorted(decisions.int8),
        "elements": {name: _element(e) for name, e in decisions.element_types.items()},
        "quantize_output": decisions.quantize_output,
        "symmetric": decisions.symmetric,
        "per_channel": decisions.per_channel,
        "factors": {n: _factors(fs) for n, fs in decisions.factors.items()},
        "grids": {name: _factors(grid) for name, grid in decisions.grids.items()},
        "fused": sorted(decisions.fused),
        "stored": None if decisions.stored is None else sorted(decisions.stored),
        "sizes": {name: [s.hex() for s in sizes] for name, sizes in decisions.sizes.items()},
    }


def from_json(data: Mapping[str, Any], graph: Graph) -> Decisions:
    """The decisions that ``to_json`` wrote, with the weights of ``graph``.

    Raises ``KeyError``, ``TypeError`` or ``ValueError``.
    """
    elements = {str(name): _element_from(e) for name, e in data["elements"].items()}
    return Decisions(
        reasons={str(name): str(reason) for name, reason in data["reasons"].items()},
        int8=frozenset(map(str, data["int8"])),
        element_types=elements,
        weights=_layer_weights(graph),
        quantize_output=bool(data["quantize_output"]),
        symmetric=bool(data["symmetric"]),
        per_channel=bool(data["per_channel"]),
        factors={str(name): _factors_from(fs) for name, fs in data.get("factors", {}).items()},
        grids={str(name): _grid_from(grid) for name, grid in data.get("grids", {}).items()},
        fused=frozenset(map(str, data.get("fused", ()))),
        stored=None if (stored := data.get("stored")) is None else frozenset(map(str, stored)),
        sizes={str(name): _sizes_from(sizes) for name, sizes in data.get("sizes", {}).items()},
    )


def _factors(factors: Array) -> list[Any]:
    """A number for each channel, or rows of a matrix."""
    if factors.ndim > 1:
        return [_factors(row) for row in factors]
    return [float(factor).hex() for factor in factors]


def _factors_from(data: Any) -> Array:
    """The inverse of ``_factors``: positive factors, or an invertible matrix."""
    if data and isinstance(data[0], list):
        matrix = np.array([[float.fromhex(f) for f in row] for row in data], np.float32)
        square = matrix.shape == (len(data), len(data)) and np.isfinite(matrix).all()
        if not square or np.linalg.matrix_rank(matrix) < len(matrix):
            raise ValueError(f"a matrix of factors is {matrix.shape}, or has no inverse")
        return matrix
    factors = np.array([float.fromhex(factor) for factor in data], np.float32)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ValueError(f"factors are {data[:8]}")
    return factors


def _grid_from(data: Any) -> Array:
    """Positive steps, and offsets."""
    steps, offsets = data
    grid = np.array([[float.fromhex(f) for f in row] for row in (steps, offsets)])
    if not (np.isfinite(grid).all() and (grid[0] > 0).all()):
        raise ValueError(f"steps of an input are {steps[:8]}")
    return grid


def _sizes_from(data: Any) -> Sizes:
    """The sizes of weights and of a bias."""
    weights, bias = map(float.fromhex, data)
    return weights, bias


def _element(element: ElementType) -> list[Any]:
    """dtype, scale and zero point; values have one scale."""
    quant = element.quant
    assert quant is not None
    return [str(element.dtype), float.hex(quant.scale), quant.zero_point]


def _element_from(data: Any) -> ElementType:
    dtype, scale, zero_point = data
    kind = DType(dtype)
    if kind not in (DType.I8, DType.I16):
        raise ValueError(f"a value is {kind}")
    low, high = kind.limits
    if not low <= int(zero_point) <= high:
        raise ValueError(f"a zero point is {zero_point}")
    return ElementType(kind, QuantParams.per_tensor(float.fromhex(scale), zero_point))
