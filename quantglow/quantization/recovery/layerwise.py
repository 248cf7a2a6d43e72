"""The walk through both graphs, layer by layer, over all samples at once.

Each layer is improved for the input that the improved layers before it give, so that errors do
not pile up.  What it should give is the float model's sum: where bounds or an activation make the
same of both models' sums, there is no error to correct.

Memory: for every sample the values between two layers, float and int8, and the moments of one
layer.  Samples are left out where all of them would need more than ``MEMORY_NBYTES``, so that it
does not grow with their number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Constant, Node
from quantglow.interrupts import begins
from quantglow.ops import Conv
from quantglow.ops.arithmetic import PART, dequantize, is_integer
from quantglow.ops.contraction import Contraction
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.convert.rules import Operands, integer_operands, renamed
from quantglow.quantization.deadline import NEVER
from quantglow.quantization.plan.params import QuantizedWeights
from quantglow.quantization.recovery.adapt_weights import adapt_weights, adaptable
from quantglow.quantization.recovery.cache import Memory
from quantglow.quantization.recovery.correct_bias import correct_bias
from quantglow.quantization.recovery.frontier import Frontier, peak_nbytes, stacks
from quantglow.quantization.recovery.layer import Layer, flat
from quantglow.quantization.recovery.moments import Moments, Statistics
from quantglow.quantization.recovery.products import BAND_NBYTES, Product
from quantglow.quantization.recovery.round_weights import round_weights
from quantglow.quantization.recovery.search_scales import search_scales
from quantglow.types import Array
from quantglow.workers import each, later, side_by_side

TECHNIQUES: dict[str, Callable[[Layer], Layer]] = {
    "adapt-weights": adapt_weights,
    "round-weights": round_weights,
    "search-scales": search_scales,
    "correct-bias": correct_bias,
}
"""In the order in which they are applied to a layer.  ``options.RECOVERIES`` has their names."""

FED_BACK = frozenset({"round-weights", "search-scales"})
"""Techniques that round weights one by one."""

MEMORY_NBYTES = 2**29
"""For the values of all samples: some 60 of EfficientNet-Lite0 and ResNet-50; more bring little."""

FEW_SAMPLES, MOST_NBYTES = 8, 2**30
"""So many samples may take more: with fewer no range is chosen."""

GRAM_NBYTES = 2**24
"""For the second moments of one layer; a layer with larger ones gets its bias corrected only."""

ROWS_PER_INPUT = 4
"""Rows of data that a layer's second moments are taken of at least, for each of its inputs.  In
wide layers more teach little and cost the most: neighbouring pixels say much the same."""

MOMENTS_WORK = 10**9
"""Multiply-accumulates within which the second moments of a layer are taken of all rows."""

COPYING_WORK = 32
"""What it costs to copy and to look at one value of a row, in multiply-accumulates: most of the
work of depthwise layers, whose rows are short.
"""

SAMPLES_PER_LINE = 8
"""That tell of the same line of an image, where lines are left out to save copying: lines of text
are not alike, and few samples would tell too little of each.
"""

FEWEST_ROWS_PER_INPUT = 0.25
"""With fewer rows for each input the second moments say too little: the bias is corrected only."""

BARE: dict[str, Any] = {"activation": None, "low": -math.inf, "high": math.inf}

STAGE = "accuracy recovery"

FEWEST_TO_SPLIT = 4
"""Samples, below which there is nothing to hold back."""


def capacity(graph: Graph) -> int:
    """How many samples of a float graph memory has room for; at least one."""
    nbytes = sample_nbytes(graph)
    few = min(FEW_SAMPLES, MOST_NBYTES // nbytes)
    return max(1, few, MEMORY_NBYTES // nbytes)


def sample_nbytes(graph: Graph) -> int:
    """What a sample takes while both graphs are walked through."""
    inputs = sum(node.type.nbytes for node in graph.inputs)
    # The int8 values are a quarter of the float ones.
    return max(inputs + peak_nbytes(graph) * 5 // 4, 1)


@dataclass(frozen=True)
class Recovered:
    """An int8 graph with improved layers, and the real values of its ``ends`` and of the float
    graph's, [samples][ends]; without them after Ctrl-C.
    """

    graph: Graph
    found: Sequence[Sequence[Array]] = ()
    wanted: Sequence[Sequence[Array]] = ()


def recover(
    graph: Graph,
    int8: Graph,
    samples: Sequence[Feeds],
    techniques: Sequence[str],
    per_channel: bool = True,
    progress: bool | str = False,
    memory: Memory | None = None,
    int8_samples: Sequence[Feeds] | None = None,
    ends: Sequence[str] = (),
) -> Recovered:
    """``int8`` with weights and biases that bring it closer to ``graph`` on the samples.

    ``int8`` is what ``quantize`` made of ``graph``; ``techniques`` are names of ``TECHNIQUES``.
    ``memory`` has the layers of earlier calls with the same graph and samples.
    ``int8_samples``: the samples, with int8 graphs where they are elsewhere (``other_shapes``).
    ``ends``: names of nodes that both graphs have, whose values are asked for.
    After Ctrl-C the layers that are left keep their plain rounding.
    """
    if not samples or not (techniques or ends):
        return Recovered(int8)
    memory = memory or Memory()
    known = memory.known(int8)
    both = list(samples), list(int8_samples or samples)
    walk = _Walk(graph, int8, *both, frozenset(techniques), per_channel, known, ends)
    made: dict[Node, Node] = {}
    with side_by_side():
        for node in shown(int8.nodes, "Recovering accuracy", progress):
            moved = node.with_operands(tuple(made[operand] for operand in node.operands))
            made[node] = walk.as_known(moved) if NEVER.is_over else walk.visit(moved)
    memory.add(int8, {name: made[int8.by_name(name)] for name in walk.improved})
    improved = int8.with_outputs(made[node] for _, node in int8.outputs)
    begins(STAGE)
    if left := len(walk.names) - len(walk.improved):
        NEVER.ends(STAGE, f"{left} of {len(walk.names)} layers have weights rounded to nearest")
    if NEVER.is_over:
        return Recovered(improved)
    return Recovered(improved, walk.found(), walk.wanted())


@dataclass
class _Walk:
    """Both graphs up to the current layer.  ``results``: float sums before activation and bounds,
    of layers that the int8 walk has not reached yet; ``known``: operands of layers from before.
    """

    graph: Graph
    int8: Graph
    samples: list[Feeds]
    int8_samples: list[Feeds]
    techniques: frozenset[str]
    per_channel: bool
    known: Mapping[str, Operands]
    ends: Sequence[str] = ()
    results: dict[str, list[Array]] = field(default_factory=dict)
    improved: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.new_names = Names.of(self.int8)
        self.floats = Frontier(self.graph, self.samples, self.ends)
        self.integers = Frontier(self.int8, self.int8_samples, self.ends)
        self.ahead: Iterator[Node] = iter(self.graph.nodes)
        self.float_step: Callable[[], None] = self._advance_to_layer
        self.names = {
            node.name
            for node in self.int8.nodes
            if self.techniques and isinstance(node, Contraction) and is_integer(node.x.type)
        } - self.known.keys()

    def visit(self, node: Node) -> Node:
        """The node, improved if it is a layer; its values are computed."""
        if isinstance(node, Constant):
            return node
        node = self.as_known(node)
        if node.name in self.names and isinstance(node, Contraction):
            node = self._improved(node)
            self.improved.append(node.name)
        self.integers.keep(node, self.integers.compute(node))
        return node

    def as_known(self, node: Node) -> Node:
        """The node, with the operands from before if it is a layer that was recovered then."""
        if node.name in self.known and isinstance(node, Contraction):
            known = renamed(self.known[node.name], self._operand_names(node))
            return dataclasses.replace(node, **known)
        return node

    def found(self) -> list[list[Array]]:
        """The real values of the ends in the int8 graph, all of whose nodes were visited."""
        ends = [self.int8.by_name(name) for name in self.ends]
        return [
            [_reals(node, self.integers.value(node, sample)) for node in ends]
            for sample in range(len(self.samples))
        ]

    def wanted(self) -> list[list[Array]]:
        """``found`` in the float graph; its walk goes on as far as they ask for."""
        ends = [self.graph.by_name(name) for name in self.ends]
        for node in self.ahead if ends else ():
            self._advance(node)
        return [
            [self.floats.value(node, sample) for node in ends]
            for sample in range(len(self.samples))
        ]

    def _improved(self, node: Any) -> Any:
        layer = self._layer(node)
        second = layer.moments.second
        wanted = self.techniques if second else self.techniques & {"correct-bias"}
        if wanted & FED_BACK:
            _ = layer.statistics.feedback  # Its computation begins, beside that of real weights.
        self.float_step = later(self._advance_to_layer, None)
        for name, technique in TECHNIQUES.items():
            if name in wanted:
                layer = technique(layer)
        return dataclasses.replace(node, **_operands(node, layer, self._operand_names(node)))

    def _operand_names(self, node: Any) -> dict[str, str]:
        """Names for the Constants of an improved layer: those it has, where it has them."""
        b = self.new_names.fresh(f"{node.name}:b:q") if node.b is None else node.b.name
        return {"w": node.w.name, "b": b}

    def _layer(self, node: Any) -> Layer:
        """The layer as plain rounding left it, with its moments over all samples."""
        x, product = node.x.type.params, Product(node)
        wanted = self._float_results(node.name)
        rows = sum(result.size for result in wanted) // node.type.shape[-1]
        group, k, _ = product.shape
        every = _every(rows, group, k, len(wanted))
        real: Any = self.graph.by_name(node.name)
        weights = product.matrix(real.w.value * np.float32(x.scale))
        outputs = node.type.shape[-1]
        bias = np.zeros((1, outputs)) if real.b is None else real.b.value.reshape(1, outputs)
        by_group = product.by_group(bias.astype(np.float64))
        scales = np.asarray(node.w.type.params.scales) * x.scale
        steps = product.by_group(np.broadcast_to(scales, bias.shape))
        in_steps = weights / steps.astype(np.float32)
        terms = (weights, by_group.astype(np.float32))
        return Layer(
            product=product,
            x=x,
            statistics=self._statistics(node, terms, wanted, every),
            weights=in_steps,
            target=in_steps,
            integers=product.matrix(node.w.value.astype(np.float32)),
            unit=steps,
            steps=steps,
            reach=steps,
            real_bias=by_group,
            bias=by_group,
            per_channel=self.per_channel,
            dtype=node.x.type.dtype,
        )

    def _statistics(
        self, node: Any, terms: tuple[Array, Array], wanted: list[Array], every: int
    ) -> Statistics:
        """The moments of a layer over all samples, of both halves side by side."""
        product, samples = Product(node), range(len(wanted))
        group, k, _ = product.shape
        rows = sum(result.size for result in wanted) // node.type.shape[-1]
        enough = group * k * k * 8 <= GRAM_NBYTES and rows >= FEWEST_ROWS_PER_INPUT * k
        second = self.techniques != {"correct-bias"} and enough
        mean_size = sum(result.size for result in wanted) // len(wanted)
        together = _together(node, mean_size, 4 * rows // every * group * k // len(wanted))
        if every > 1:
            together = 1  # Each sample tells of other lines: they are not alike, as of text.

        def counted(of_half: range) -> Moments:
            moments = Moments.zeros(product.shape, second)
            for first, part in enumerate(self.integers.parts(of_half, together)):
                own = self.integers.counterpart(node, part[0])
                self._add(moments, own, terms, part, [wanted[s] for s in part], every, first)
            return moments

        halves = tuple(each(counted, [samples[::2], samples[1::2]]))
        split = "adapt-weights" in self.techniques and adaptable(rows // every // 2, k)
        if second and split and len(wanted) >= FEWEST_TO_SPLIT:
            return Statistics(halves)
        return Statistics((halves[0] + halves[1],))

    def _add(
        self,
        moments: Moments,
        node: Any,
        terms: tuple[Array, Array],
        part: Sequence[int],
        wanted: Sequence[Array],
        every: int,
        first: int,
    ) -> None:
        """Count some samples: the int8 input, and the float results less what the real weights
        and bias (``terms``, by group) and the int8 residual give.
        """
        codes, zero_point = self.integers.stacked(node.x, part), node.x.type.params.zero_point
        x = np.subtract(codes, zero_point, dtype=np.float32)
        others: tuple[Array, ...] = (np.concatenate(wanted),)
        if isinstance(node, Conv) and node.residual is not None:
            residual = self.integers.stacked(node.residual, part)
            if is_integer(node.residual.type):
                residual = dequantize(residual, node.residual.type.params)
            others = (*others, residual)
        weights, bias = terms
        for columns, y, *residuals in Product(node).bands(x, *others, every=every, first=first):
            now = columns @ weights
            for term in (bias, *residuals):
                now += term
            moments.add(columns, _missing(node, y, now))

    def _float_results(self, name: str) -> list[Array]:
        """The float sums of a layer before activation and bounds; the float walk advances to it."""
        self.float_step()
        while name not in self.results:
            self._advance(next(self.ahead))
        return self.results.pop(name)

    def _advance_to_layer(self, _: None = None) -> None:
        """The float walk to the next layer: while one is rounded, which keeps one core busy."""
        known = len(self.results)
        for node in self.ahead:
            self._advance(node)
            if len(self.results) > known:
                return

    def _advance(self, node: Node) -> None:
        if isinstance(node, Constant):
            return
        if node.name not in self.names or not isinstance(node, Contraction):
            self.floats.keep(node, self.floats.compute(node))
            return
        bare: Any = dataclasses.replace(node, **BARE)
        results = self.floats.compute(bare)
        self.results[node.name] = results
        if not node.is_bare:
            self.floats.unfinished[node.name] = node
        self.floats.keep(node, results)


def _reals(node: Node, value: Array) -> Array:
    return dequantize(value, node.type.params) if is_integer(node.type) else value


def _every(rows: int, group: int, k: int, samples: int) -> int:
    """Of so many rows of a layer's data the moments are taken of every so-manieth."""

    def for_work(row_work: int) -> int:
        return rows // max(ROWS_PER_INPUT * k, MOMENTS_WORK // row_work)

    copied = for_work(group * k * (k + COPYING_WORK))
    return max(1, for_work(group * k * k), min(copied, samples // SAMPLES_PER_LINE))


def _together(node: Any, results: int, columns_nbytes: int) -> int:
    """How many samples to look at at once: their columns and input in float, and their results as
    wanted, as they are, and the difference.
    """
    if not stacks(node):
        return 1
    inputs = node.x.type.size * results // node.type.size
    values_nbytes = 4 * (inputs + 3 * results)
    return int(max(1, BAND_NBYTES // 2 // max(columns_nbytes + values_nbytes, 1)))


def _missing(node: Contraction, wanted: Array, now: Array) -> Array:
    """``wanted - now``, in the place of ``now``; 0 where bounds or activation make the same of
    both.
    """
    everywhere = node.live == (-math.inf, math.inf)
    goals, sums = wanted.reshape(-1), now.reshape(-1)
    for start in range(0, sums.size, PART):
        part = slice(start, start + PART)
        dead = None if everywhere else _both_dead(node, goals[part], sums[part])
        np.subtract(goals[part], sums[part], out=sums[part])
        if dead is not None:
            # By bits: a masked copy takes ten times as long where the mask looks random.
            bits, kept = sums[part].view(np.int32), dead.view(np.int8) - np.int8(1)
            np.bitwise_and(bits, kept, out=bits)
    return sums.reshape(now.shape)


def _both_dead(node: Contraction, one: Array, other: Array) -> Array:
    """Where both sums lie on the same side outside of what makes a difference."""
    low, high = map(np.float32, node.live)
    below = (one <= low) & (other <= low)
    if high == math.inf:
        return np.asarray(below)
    return np.asarray(below | ((one >= high) & (other >= high)))


def _operands(node: Any, layer: Layer, names: Mapping[str, str]) -> dict[str, Any]:
    """The Constants w and b of an improved layer."""
    steps = flat(layer.steps)[0]
    bias = None
    if node.b is not None or layer.bias.any():
        bias = np.rint(flat(layer.bias)[0] / steps).astype(np.int32)
    scales = (steps / layer.x.scale).astype(np.float32)
    weights = layer.product.weights(layer.integers).astype(np.int8)
    return integer_operands(names, QuantizedWeights(weights, scales, bias), layer.x)
