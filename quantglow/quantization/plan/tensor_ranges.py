"""The range of every value before any trial: the calibrated range, without parts on which all
readers are flat, and wider if calibration saw few values.

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

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.graph.traits import Trait
from quantglow.ops import MatMul
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile, Range, choose_range
from quantglow.quantization.plan.functions import Function, function_of
from quantglow.quantization.plan.masks import masked_values
from quantglow.quantization.plan.params import activation_element
from quantglow.types import ElementType

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
    found: dict[Node, Range] = {}
    special = masked_values(graph, profile)
    for node in graph.nodes:
        if not node.type.dtype.is_float or node in special:
            continue
        if isinstance(node, Constant):
            if all(map(math.isfinite, node.extremes)):
                found[node] = Range(*node.extremes)
        elif node.name in profile:
            histogram = profile.histograms[node.name]
            arguments = (config.calibrate_method, config.percentile, config.symmetric)
            found[node] = choose_range(histogram, *arguments)
            if config.calibrate_method == "auto":
                found[node] = _with_spare(found[node], node, profile)
    return found | live_ranges(graph, found)


def element_of(profile: Profile, config: QuantizationConfig, name: str) -> ElementType | None:
    """The integer type of a value that is not in the graph, by its calibrated range."""
    if name not in profile or profile.histograms[name].specials:
        return None
    arguments = (config.calibrate_method, config.percentile, config.symmetric)
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
    shape = node.type.shape
    if isinstance(node, MatMul) or node.type.rank < 2 or node.type.size != shape[0] * shape[-1]:
        return math.inf
    return profile.histograms[node.name].count / shape[-1]


def _with_spare(seen: Range, node: Node, profile: Profile) -> Range:
    if node.has(Trait.KEEPS_QUANTIZATION) or not node.operands:
        return seen  # Its operands have room already; inputs are what they are.
    wider = 1 + min(SPARE / _values_by_channel(node, profile), MAX_SPARE)
    return Range(seen.low * wider, seen.high * wider)


def live_ranges(graph: Graph, ranges: Mapping[Node, Range]) -> dict[Node, Range]:
    """The narrower ranges of values whose readers are all functions with flat ends."""
    outputs = {node for _, node in graph.outputs}
    found = {}
    for node, whole in ranges.items():
        readers = graph.users[node]
        if isinstance(node, Constant) or node in outputs or not readers:
            continue
        functions = [function_of(reader) for reader in readers]
        parts = [live(f[1], whole) for f in functions if f is not None and f[0] is node]
        if len(parts) == len(readers):
            found[node] = reduce(Range.union, parts)
    return found


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
