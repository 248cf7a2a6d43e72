"""Checks of samples: data unlike the training data, and inputs of another scale than biases expect.

A folded BatchNormalization leaves the bias ``beta - mean``: what training subtracted from the mean
of a layer's products.  On right inputs, biases of many channels oppose the means of their products,
and are about as large as what the products vary by.  On bytes in place of numbers up to 1 they are
hundreds of times smaller; on inputs divided by 255 twice, hundreds of times larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantglow.interpreter import RecordedFeeds, interpret, results_in
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import BatchNormalization, Conv, ConvTranspose, Gemm
from quantglow.ir.ops.binary import Binary
from quantglow.support.arrays import Array

FEWEST_SAMPLES = 10
"""Minimum number of different samples; with fewer, ranges and rounded weights depend on chance,
and no sample is left for a check."""

MAX_SHARE = 0.1
"""Share of constant samples, or of repeated ones, above which there is a warning."""

MAX_SHIFT, MAX_SCALE = 3.0, 4.0
"""Distance of the median channel's mean from that of training, in its standard deviations, and
ratio of the standard deviations, in either direction.  Measured on the embedded networks: up to 0.5
and 1.1 on their data; 75 and 150 or more on bytes that were not scaled; 0.3 and 250 where digits
were divided by 255 twice.
"""

NORMALIZED_SAMPLES = 4
"""Maximum number of samples that run up to the first BatchNormalization."""

LAYERS = 8
"""Number of layers whose biases are compared with their products."""

SAMPLES = 4
"""Maximum number of samples that run through these layers."""

MIN_CHANNELS = 8
"""Minimum number of channels of a layer of which something can be told."""

MAX_RIGIDITY = 30.0
"""Median ratio, over the first layer's channels, of the mean of a result to its deviation, above
which the inputs hardly matter.  Measured on 15 networks: up to 8.4 on their data, 53 or more on
inputs divided by 255 once more.
"""

MIN_BIAS = 0.15
"""Median ratio, over the first layer's channels, of the bias to the deviation of a result, below
which the bias hardly matters.  Measured: 0.13 or more on right data, 0.14 or less on bytes.
"""

MIN_COSINE, SLOPES, MIN_OPPOSED = 0.7, (0.6, 1.6), 2
"""Biases oppose the means of products where the cosine of both, in units of the deviations, and the
slope of the line through 0 are such, in so many layers at least.
"""

BYTE = 255.0


@dataclass
class SampleChecks:
    """Numbers of all samples and of constant ones, and the digests of different ones."""

    count: int = 0
    constant: int = 0
    digests: set[bytes] = field(default_factory=set)

    def add(self, feeds: Mapping[str, Array], digest: bytes) -> None:
        """Count a sample."""
        self.count += 1
        self.constant += _is_constant(feeds)
        self.digests.add(digest)

    def warnings(self) -> list[str]:
        """Warnings about the samples."""
        warnings, distinct = [], len(self.digests)
        if self.constant > MAX_SHARE * self.count:
            warnings.append(
                f"{self.constant} of {self.count} samples are constant: every input has the same "
                "value everywhere. The figures say nothing about real data."
            )
        if self.count - distinct > MAX_SHARE * self.count:
            warnings.append(
                f"only {distinct} of {self.count} samples are different: the others repeat them."
            )
        if distinct < FEWEST_SAMPLES:
            warnings.append(
                f"{distinct} different sample(s) are few: 100 to 300 are usual, and with "
                f"{FEWEST_SAMPLES} or more some are kept for the check."
            )
        return warnings


def _is_constant(feeds: Mapping[str, Array]) -> bool:
    """Whether all inputs with more than one element are constant, and there is such an input."""
    large = [array for array in feeds.values() if array.size > 1]
    return bool(large) and all(bool((array == array.flat[0]).all()) for array in large)


def unlike_training(graph: Graph, samples: Sequence[Mapping[str, Array]]) -> list[str]:
    """A warning if the first BatchNormalization of an imported graph sees other values than its
    statistics of training describe.
    """
    first = next(filter(_is_normalization, graph.nodes), None)
    if first is None or not samples:
        return []
    up_to = Graph(graph.inputs, (("value", first.operands[0]),), graph.source_hash)
    runs = (interpret(up_to, _feeds_of(up_to, feeds))[0] for feeds in samples[:NORMALIZED_SAMPLES])
    rows = np.concatenate([value.reshape(-1, value.shape[-1]) for value in runs], dtype=np.float64)
    mean, var = (getattr(first, name).value.reshape(-1) for name in ("mean", "var"))
    deviation = np.sqrt(var.astype(np.float64) + first.attributes()["epsilon"])
    shift = float(np.median(np.abs(rows.mean(0) - mean) / deviation))
    scale = float(np.median(rows.std(0) / deviation))
    if shift <= MAX_SHIFT and 1 / MAX_SCALE <= scale <= MAX_SCALE:
        return []
    return [
        f"the inputs are unlike those of training: behind the first layers ({first.name!r}) values "
        f"lie {shift:.2g} standard deviations from the mean that the model holds, and spread "
        f"{scale:.2g} times as far. Look at the preprocessing (division by 255, mean, channels)."
    ]


def _is_normalization(node: Node) -> bool:
    """Whether it holds the statistics of training, for values of at least two elements."""
    return isinstance(node, BatchNormalization) and all(
        isinstance(operand, Constant) for operand in (node.mean, node.var)
    )


@dataclass(frozen=True)
class LayerStatistics:
    """The bias of each channel, and mean and deviation of its results; float64 [channels]."""

    bias: Array
    mean: Array
    deviation: Array

    @property
    def rigidity(self) -> float:
        """Median ratio of the means to the deviations."""
        return float(np.median(np.abs(self.mean) / self.deviation))

    @property
    def bias_share(self) -> float:
        """Median ratio of the biases to the deviations."""
        return float(np.median(np.abs(self.bias) / self.deviation))

    @property
    def is_opposed(self) -> bool:
        """Whether the biases oppose the means of the products, and are as large."""
        bias, products = -self.bias / self.deviation, (self.mean - self.bias) / self.deviation
        sizes = math.sqrt(bias @ bias), math.sqrt(products @ products)
        if not all(sizes):
            return False
        product = bias @ products
        low, high = SLOPES
        is_along = product / (sizes[0] * sizes[1]) >= MIN_COSINE
        return bool(is_along and low <= product / sizes[1] ** 2 <= high)


def out_of_scale(graph: Graph, samples: Sequence[Mapping[str, Array]]) -> list[str]:
    """A warning if the samples are too small or too large for the first layer of the optimized
    graph.

    Small biases alone do not tell: without normalization training leaves them small.  They are
    evidence if those of several layers fit inputs divided by 255.
    """
    layers = _layers(graph)
    if not layers or not _reads_inputs(layers[0]) or not samples:
        return []
    (first,) = _statistics(graph, layers[:1], samples)
    if first.rigidity > MAX_RIGIDITY:
        return [
            f"the inputs hardly matter: results of the first layer ({layers[0].name!r}) are "
            f"{first.rigidity:.2g} times as large as they vary by. The inputs are almost constant, "
            "or much smaller than in training. Look at the preprocessing (division by 255)."
        ]
    if first.bias_share >= MIN_BIAS:
        return []
    fits = [
        sum(layer.is_opposed for layer in _statistics(graph, layers, samples, factor))
        for factor in (1.0, 1 / BYTE)
    ]
    if fits[0] >= MIN_OPPOSED or fits[1] < MIN_OPPOSED:
        return []
    return [
        "the inputs are much larger than in training: the biases of the first layers do not matter "
        f"beside them ({layers[0].name!r}: {first.bias_share:.2g} of the deviation), and would if "
        "the inputs were divided by 255. Look at the preprocessing."
    ]


def _layers(graph: Graph) -> list[Conv | ConvTranspose | Gemm]:
    """The first layers with constant weights and biases, of enough channels."""
    layers = [
        node
        for node in graph.compute_nodes()
        if isinstance(node, Conv | ConvTranspose | Gemm)
        and isinstance(node.w, Constant)
        and isinstance(node.b, Constant)
        and node.b.value.any()
        and node.b.value.size >= MIN_CHANNELS
    ]
    return layers[:LAYERS]


def _reads_inputs(node: Node) -> bool:
    """Whether the node reads float inputs, moved, joined and scaled by Constants at most."""
    waiting = [node.operands[0]]
    while waiting:
        value = waiting.pop()
        computed = [o for o in value.operands if not isinstance(o, Constant)]
        if isinstance(value, Input):
            if not value.type.dtype.is_float:
                return False
        elif not value.has(Trait.MOVES) and not (isinstance(value, Binary) and len(computed) == 1):
            return False
        waiting += computed
    return True


def _statistics(
    graph: Graph,
    layers: Sequence[Conv | ConvTranspose | Gemm],
    samples: Sequence[Mapping[str, Array]],
    factor: float = 1.0,
) -> list[LayerStatistics]:
    """Statistics of the layers' sums on some samples, times a factor."""
    bare = [_bare(layer) for layer in layers]
    up_to = Graph(graph.inputs, tuple((node.name, node) for node in bare), graph.source_hash)
    runs = [interpret(up_to, _feeds_of(up_to, feeds, factor)) for feeds in samples[:SAMPLES]]
    return [
        _layer_statistics(layer, [result.reshape(-1, result.shape[-1]) for result in results])
        for layer, results in zip(layers, zip(*runs, strict=True), strict=True)
    ]


def _bare(layer: Conv | ConvTranspose | Gemm) -> Node:
    """The layer's sums, without what is fused into it."""
    changes: dict[str, Any] = {"activation": None, "low": -math.inf, "high": math.inf}
    if isinstance(layer, Conv):
        changes["residual"] = None
    return replace(layer, name=f"{layer.name}:sum", **changes)


def _feeds_of(graph: Graph, feeds: Mapping[str, Array], factor: float = 1.0) -> RecordedFeeds:
    """The arrays for the inputs of a graph, times a factor; results that decide sizes stay."""
    arrays = {node.name: _times(feeds[node.name], factor) for node in graph.inputs}
    return RecordedFeeds(arrays, results_in(feeds))


def _times(array: Array, factor: float) -> Array:
    return (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array


def _layer_statistics(layer: Node, rows: Sequence[Array]) -> LayerStatistics:
    """Statistics of the channels whose bias and results are finite; zeros if there are none."""
    results = np.concatenate(rows, dtype=np.float64)
    assert isinstance(layer, Conv | ConvTranspose | Gemm) and isinstance(layer.b, Constant)
    with np.errstate(all="ignore"):
        mean, deviation = results.mean(axis=0), results.std(axis=0)
    bias = layer.b.value.astype(np.float64)
    finite = np.isfinite(bias) & np.isfinite(mean) & np.isfinite(deviation)
    if not finite.any():
        return LayerStatistics(np.zeros(1), np.zeros(1), np.ones(1))
    least = np.finfo(np.float32).tiny
    return LayerStatistics(bias[finite], mean[finite], np.maximum(deviation[finite], least))
