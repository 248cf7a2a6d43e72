"""Range of every value before any trial, and values that hold or stand for infinities.

The range is the calibrated one, without parts on which all readers are flat, and wider if
calibration saw few values.

Exporters hide attention scores by -1e9, -1e4 or the lowest number of a float type as well as by
-inf.  A mask that no calibration sample needed may hide something later, at another length or in
a batch with padding: 256 steps of the range that calibration saw would let it leak.

HardSwish gives 0 for everything below -3, HardSigmoid and Clip are flat on both sides, Swish and
Sigmoid nearly so.  If all readers of a value are flat on a part of its range, one integer suffices
there, and the other 255 get a finer step: half of it if a convolution reaches from -15 to 11 before
a HardSwish.

Pooling leaves one value of each channel, which is seen once for each sample.  So few values do not
show the maximum of other data, and clipping there is wrong for a whole channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Add, MatMul, Mul, Pad, Sub
from quantglow.ir.types import ElementType
from quantglow.profiling import Profile, Range, choose_range
from quantglow.profiling.histogram import Histogram
from quantglow.profiling.specials import NONE, Specials, node_specials, shows_specials
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.eligibility import Function, unary_function
from quantglow.quantization.plan.params import activation_element
from quantglow.support.arrays import Array

LARGE = 1e4
"""Minimum magnitude of a number that hides the values it is added to or replaces."""

POINTS = 4096
"""Number of points at which a function is evaluated."""

TOLERANCE = 0.25
"""Maximum change of a function that counts as flat, in steps of its result."""

SPARE = 10.0
"""``auto`` widens a range seen from n values of each channel by the share ``SPARE / n``, at most
``MAX_SPARE``."""

MAX_SPARE = 0.5
FEW = 100
"""Maximum number of values of each channel that show neither exceptions nor the channel's reach."""


def tensor_ranges(graph: Graph, profile: Profile, config: QuantizationConfig) -> dict[Node, Range]:
    """The range of every float value that has one: from the profile, or from a Constant.

    Values that may be infinite or masked have none: integers would saturate, and a mask would hide
    nothing.  Values that may be NaN have none either, since no integer represents it.
    """
    ranges: dict[Node, Range] = {}
    special = masked_values(graph, profile)
    for node in graph.nodes:
        if not node.type.dtype.is_float or node in special:
            continue
        if isinstance(node, Constant):
            if all(map(math.isfinite, node.extremes)):
                ranges[node] = Range(*node.extremes)
        elif node.name in profile:
            histogram = profile.histograms[node.name]
            arguments = (config.method, config.percentile, config.symmetric)
            ranges[node] = choose_range(histogram, *arguments)
            if config.method == "auto":
                ranges[node] = _with_spare(ranges[node], node, profile)
    return ranges | _live_ranges(graph, ranges)


def calibrated_element(
    profile: Profile, config: QuantizationConfig, name: str
) -> ElementType | None:
    """The integer type of a value that is not in the graph, by its calibrated range."""
    if name not in profile or profile.histograms[name].specials:
        return None
    arguments = (config.method, config.percentile, config.symmetric)
    return activation_element(choose_range(profile.histograms[name], *arguments), config.symmetric)


def scarce_values(graph: Graph, profile: Profile) -> frozenset[str]:
    """Names of results with at most ``FEW`` values of each channel in the profile."""
    return frozenset(
        node.name
        for node in graph.compute_nodes()
        if node.name in profile and _values_by_channel(node, profile) <= FEW
    )


def _values_by_channel(node: Node, profile: Profile) -> float:
    """Number of values of each channel (last axis) in the profile if a sample has one of each;
    infinity if it has more, which are always enough.
    """
    shape = node.type.fixed_shape
    if isinstance(node, MatMul) or len(shape) < 2 or math.prod(shape) != shape[0] * shape[-1]:
        return math.inf
    return profile.histograms[node.name].count / shape[-1]


def _with_spare(values: Range, node: Node, profile: Profile) -> Range:
    if node.has(Trait.KEEPS_QUANTIZATION) or not node.operands:
        return values  # Its operands have room already; inputs are what they are.
    # A new value exceeds the largest of n with probability 1 / (n + 1).
    wider = 1 + min(SPARE / _values_by_channel(node, profile), MAX_SPARE)
    return Range(values.low * wider, values.high * wider)


def _live_ranges(graph: Graph, ranges: Mapping[Node, Range]) -> dict[Node, Range]:
    """The narrower ranges of values whose readers are all functions with flat ends."""
    outputs = {node for _, node in graph.outputs}
    narrower = {}
    for node, whole in ranges.items():
        readers = graph.users[node]
        if isinstance(node, Constant) or node in outputs or not readers:
            continue
        functions = [unary_function(reader) for reader in readers]
        parts = [live(f[1], whole) for f in functions if f is not None and f[0] is node]
        if len(parts) == len(readers):
            narrower[node] = reduce(Range.union, parts)
    return narrower


def live(function: Function, whole: Range) -> Range:
    """``whole`` without its flat ends; 0 stays inside."""
    low, high = min(whole.low, 0.0), max(whole.high, 0.0)
    x = np.linspace(low, high, POINTS)
    with np.errstate(all="ignore"):
        y = np.asarray(function(x), np.float64)
        tolerance = TOLERANCE * (y.max() - y.min()) / 255
        below = x[(x <= 0) & _flat_until(y, tolerance)]
        above = x[(x >= 0) & _flat_until(y[::-1], tolerance)[::-1]]
    return Range(below.max(initial=low), above.min(initial=high))


def _flat_until(y: Array, tolerance: float) -> Array:
    """Whether all values up to each one are within ``tolerance`` of it; false after a NaN."""
    distance = np.maximum(np.maximum.accumulate(y) - y, y - np.minimum.accumulate(y))
    return np.asarray(distance <= tolerance)


def special_values(graph: Graph, profile: Profile | None = None) -> dict[Node, Specials]:
    """Float values that include infinities or NaN, or may do so at run time.

    The profile says which sums and maxima of many values include them.
    """
    return _special_values(graph, profile, masks=False)


def masked_values(graph: Graph, profile: Profile | None = None) -> dict[Node, Specials]:
    """``special_values`` where the large numbers of masks count as infinities."""
    return _special_values(graph, profile, masks=True)


def _special_values(graph: Graph, profile: Profile | None, masks: bool) -> dict[Node, Specials]:
    specials: dict[Node, Specials] = {}
    for node in graph.nodes:
        histogram = profile.histograms.get(node.name) if profile else None
        values = NONE if histogram is None or isinstance(node, Constant) else histogram.specials
        if isinstance(node, Constant) or shows_specials(node):
            hidden = {o: _hiding(o, node, histogram) for o in node.operands} if masks else {}
            of = {o: specials.get(o, NONE) | hidden.get(o, NONE) for o in node.operands}
            values |= node_specials(node, of.__getitem__)
        if masks and isinstance(node, Pad):
            values |= _infinities(node.value, node.value)
        if values:
            specials[node] = values
    return specials


def _hiding(operand: Node, reader: Node, results: Histogram | None) -> Specials:
    """The infinities that the large numbers of a Constant stand for where ``reader`` hides other
    values by them; none in weights, factors and shifts of all values.

    ``results``: the calibrated values of the reader's result.  A factor belongs to a mask if its
    product was always 0.
    """
    if not isinstance(operand, Constant) or not operand.type.dtype.is_float:
        return NONE
    infinities = _infinities(*operand.extremes)
    match reader:
        case Add() | Sub():
            hides = bool(infinities) and bool((np.abs(operand.value) < LARGE).any())
        case Mul():
            hides = results is not None and results.minimum == results.maximum == 0
        case _:
            hides = reader.has(Trait.PASSES_SPECIALS)
    return infinities if hides else NONE


def _infinities(low: float, high: float) -> Specials:
    """The infinities for which the extremes of some numbers stand."""
    return frozenset(
        infinity
        for infinity, is_large in ((-math.inf, low <= -LARGE), (math.inf, high >= LARGE))
        if is_large
    )
