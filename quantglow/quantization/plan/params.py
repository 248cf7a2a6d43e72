"""Quantization parameters: element types of activations in groups, and weights as integers.

``real = scale * (q - zero_point)``, int8, or int16 for a few activations.  0 has an integer of its
own, so that padding and bounds at 0 are exact, as in Jacob et al., 2018, arXiv:1712.05877.

Operators that only move, select or join elements copy integers.  So their operands and results are
a group of values with one scale and zero point (``parameter_groups``).

Weights have a scale for each output channel, which costs nothing, because it leaves the sum
(Krishnamoorthi, 2018, arXiv:1806.08342).  Layers whose weights a model has as integers keep these,
with their scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node, StoredConstant
from quantglow.ir.ops import Clip, Concat, Relu
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.profiling import Range
from quantglow.support.arrays import Array

LOWEST, HIGHEST = DType.I8.limits
WEIGHT_LIMIT = 127
"""Maximum magnitude of a weight: [-127, 127], so that negating one cannot overflow."""

MIN_SCALE = float(np.finfo(np.float32).tiny)
"""Minimum scale: subnormal ones would lose precision, and their reciprocal overflows."""

ZERO_RANGE_SCALE = 2.0**-8
"""Scale of a tensor that was always 0: bias scales built on it stay fine-grained."""

ROUNDED_TWICE = "the model has its weights as integers, which int8 would round again"


def activation_element(values: Range, symmetric: bool = False) -> ElementType:
    """int8 parameters under which all of ``values`` and 0 are representable without clipping.

    Asymmetric: 0 lies exactly on the zero point, and the scale is the smallest that still
    reaches both ends, so ``|x - dequantize(quantize(x))| <= scale / 2`` in the whole range.
    Symmetric: zero point 0; or -128 if no value is negative, which a backend stores as unsigned
    numbers with zero point 0.
    """
    low, high = min(values.low, 0.0), max(values.high, 0.0)
    if low == high:
        return _element(ZERO_RANGE_SCALE, 0)
    if symmetric and low < 0:
        return _element(max(-low, high) / HIGHEST, 0)
    zero_point = int(np.clip(np.rint(LOWEST - low * 255 / (high - low)), LOWEST, HIGHEST))
    # Each end that is not 0 needs a step on its side of the zero point.
    zero_point = min(zero_point, HIGHEST - 1) if high > 0 else zero_point
    zero_point = max(zero_point, LOWEST + 1) if low < 0 else zero_point
    scales = [0.0]
    if high > 0:
        scales.append(high / (HIGHEST - zero_point))
    if low < 0:
        scales.append(low / (LOWEST - zero_point))
    return _element(max(scales), zero_point)


def int16_element(reach: float) -> ElementType:
    """Symmetric int16 parameters under which ``[-reach, reach]`` is representable."""
    highest = DType.I16.limits[1]
    scale = max(reach / highest, MIN_SCALE) if reach else ZERO_RANGE_SCALE
    return ElementType(DType.I16, QuantParams.per_tensor(scale, 0))


def _element(scale: float, zero_point: int) -> ElementType:
    params = QuantParams.per_tensor(max(scale, MIN_SCALE), zero_point)
    return ElementType(DType.I8, params)


@dataclass(frozen=True)
class QuantizedWeights:
    """int8 weights, the scale of each channel (last axis), and the int32 bias."""

    weights: Array
    scales: Array
    bias: Array | None


def quantize_weights(
    weights: Array,
    bias: Array | None,
    x: QuantParams,
    per_channel: bool = True,
    dtype: DType = DType.I8,
) -> QuantizedWeights:
    """``weights / scale`` and ``bias / (x.scale * scale)``, rounded half to even.

    A channel's scale is ``max |w| / 127``, enlarged where the int32 accumulator, bias plus the
    worst sum over all inputs of ``dtype``, would overflow.  (For int8 that takes 66,000 inputs;
    for int16 the magnitudes of a channel's weights may add up to 65,535, some 2,000 inputs.)
    """
    axes = tuple(range(weights.ndim - 1))
    largest = np.abs(weights).max(axis=axes, initial=0.0).astype(np.float64)
    scales = _channel_scales(largest if per_channel else np.full_like(largest, largest.max()))
    for _ in range(8):
        integers = _round_weights(weights, scales)
        excess = accumulator_excess(integers, bias, scales, x, dtype)
        if (excess <= 1).all():
            break
        # Float32 rounding and the rounding of weights can leave a little: hence the margin.
        factors = np.where(excess > 1, excess * 1.001, 1.0)
        scales = (scales * (factors if per_channel else factors.max())).astype(np.float32)
    return QuantizedWeights(integers, scales, _round_bias(bias, scales, x))


def with_bias(
    stored: QuantizedWeights, bias: Array | None, x: QuantParams, dtype: DType = DType.I8
) -> QuantizedWeights | None:
    """Weights whose scales must stay, with a bias; None where the int32 accumulator would
    overflow."""
    if (accumulator_excess(stored.weights, bias, stored.scales, x, dtype) > 1).any():
        return None
    return replace(stored, bias=_round_bias(bias, stored.scales, x))


def _channel_scales(largest: Array) -> Array:
    """float32 scales; a channel of zeros gets the scale of the largest channel."""
    spare = largest.max(initial=0.0) or 1.0
    reach = np.where(largest > 0, largest, spare)
    return np.maximum(reach / WEIGHT_LIMIT, MIN_SCALE).astype(np.float32)


def _round_weights(weights: Array, scales: Array) -> Array:
    steps = np.rint(weights / scales)
    return np.clip(steps, -WEIGHT_LIMIT, WEIGHT_LIMIT).astype(np.int8)


def _round_bias(bias: Array | None, scales: Array, x: QuantParams) -> Array | None:
    if bias is None:
        return None
    return np.rint(bias / (scales.astype(np.float64) * x.scale)).astype(np.int32)


def accumulator_excess(
    integers: Array, bias: Array | None, scales: Array, x: QuantParams, dtype: DType = DType.I8
) -> Array:
    """For each channel the largest ``|accumulator|`` that any x of ``dtype`` gives, over the
    maximum of int32.  ``integers``: weights, of any dtype.
    """
    lowest, highest = dtype.limits
    magnitudes = np.abs(integers.astype(np.float32, copy=False))
    sums = magnitudes.sum(axis=tuple(range(integers.ndim - 1)), dtype=np.float64)
    reach = max(highest - x.zero_point, x.zero_point - lowest)
    worst = sums * reach
    if bias is not None:
        worst = worst + np.abs(np.rint(bias / (scales.astype(np.float64) * x.scale)))
    return np.asarray(worst / DType.I32.limits[1])


def reads_stored_weights(node: Node) -> bool:
    """Whether an operand is integers of the model, as reals."""
    return any(isinstance(operand, StoredConstant) for operand in node.operands)


def stored_weights(node: Node) -> QuantizedWeights | None:
    """The weights of a layer that the model has as integers, if int8 has them exactly with one
    scale for each output channel."""
    if not isinstance(node, Contraction) or not isinstance(node.w, StoredConstant):
        return None
    return None if node.w.integers is None else exact_weights(node.w.integers)


def exact_weights(integers: Node) -> QuantizedWeights | None:
    """The integers as weights of zero point 0; None where int8 has no such weights."""
    whole = center_weights(integers)
    if whole is None or whole[1].any() or (whole[2] < MIN_SCALE).any():
        return None
    return QuantizedWeights(whole[0], whole[2], None)


def center_weights(w: Node) -> tuple[Array, Array, Array] | None:
    """Weights as int8 of zero point 0; for each channel (last axis) the amount by which they are
    too low, and a scale.

    Zero points are subtracted, which is exact if all differences of a channel are int8.  If not, as
    happens with uint8, the codes stay as they are.
    """
    if not isinstance(w, Constant) or w.type.dtype is not DType.I8:
        return None
    params, channels = w.type.params, w.type.fixed_shape[-1:]
    if params.axis not in (None, w.type.rank - 1):
        return None
    zero_points = np.broadcast_to(np.asarray(params.zero_points, np.int32), channels)
    differences = w.value.astype(np.int32) - zero_points
    axes, (lowest, highest) = tuple(range(w.type.rank - 1)), DType.I8.limits
    fits = ((lowest <= differences) & (differences <= highest)).all(axis=axes)
    weights = np.where(fits, differences, w.value).astype(np.int8)
    scales = np.broadcast_to(np.asarray(params.scales, np.float32), channels).copy()
    return weights, np.where(fits, 0, -zero_points), scales


EXTREME_RATIO = 16.0
"""Minimum ratio of the range of a Concat to that of a part from which the part keeps its own scale
for its other readers."""


def parameter_groups(
    graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> dict[Node, Node]:
    """Value with a range -> the representative of those that share its parameters."""
    groups = UnionFind(ranges)
    for node in graph.compute_nodes():
        if node not in reasons:
            for operand in _sharing(node, graph, ranges, reasons):
                groups.join(node, operand)
    return {node: groups.find(node) for node in ranges}


def element_types(
    ranges: Mapping[Node, Range], groups: Mapping[Node, Node], symmetric: bool
) -> dict[Node, ElementType]:
    """One element type for each group of values that share parameters."""
    unions: dict[Node, Range] = {}
    for node, values in ranges.items():
        root = groups[node]
        unions[root] = unions[root].union(values) if root in unions else values
    types = {root: activation_element(r, symmetric) for root, r in unions.items()}
    return {node: types[groups[node]] for node in ranges}


def _sharing(
    node: Node, graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> list[Node]:
    """The operands that should have the parameters of the node's result."""
    if isinstance(node, Concat):
        return [p for p in node.parts if not _keeps_own_scale(p, node, graph, ranges, reasons)]
    if node.has(Trait.KEEPS_QUANTIZATION):
        return [operand for operand in node.operands if operand.type.dtype.is_float]
    if isinstance(node, Relu | Clip) and _clips_nothing(node, ranges[node.x]):
        return [node.x]
    return []


def _clips_nothing(node: Relu | Clip, x: Range) -> bool:
    """Whether a Relu or Clip leaves every value of the range as it is."""
    low, high = (0.0, float("inf")) if isinstance(node, Relu) else (node.low, node.high)
    return low <= x.low and x.high <= high and low <= 0 <= high


def _keeps_own_scale(
    part: Node,
    concat: Concat,
    graph: Graph,
    ranges: Mapping[Node, Range],
    reasons: Mapping[Node, str],
) -> bool:
    """Whether a part is so narrow that its other int8 readers need a finer scale."""
    others = [u for u in graph.users[part] if u is not concat and u not in reasons]
    width, whole = _with_zero(ranges[part]).width, _with_zero(ranges[concat]).width
    return bool(others) and 0 < width * EXTREME_RATIO < whole


def _with_zero(values: Range) -> Range:
    return values.union(Range(0.0, 0.0))


class UnionFind:
    """Disjoint sets of nodes."""

    def __init__(self, nodes: Iterator[Node] | Mapping[Node, object] | list[Node]) -> None:
        self.parents = {node: node for node in nodes}

    def __contains__(self, node: Node) -> bool:
        return node in self.parents

    def find(self, node: Node) -> Node:
        """The representative of the node's set."""
        root = node
        while self.parents[root] is not root:
            root = self.parents[root]
        # Path compression: later searches from these nodes take one step.
        while self.parents[node] is not root:
            self.parents[node], node = root, self.parents[node]
        return root

    def join(self, one: Node, other: Node) -> None:
        self.parents[self.find(other)] = self.find(one)
