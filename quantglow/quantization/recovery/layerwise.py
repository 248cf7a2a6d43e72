"""Layer-wise recovery: both graphs run side by side over all samples, and each int8 layer is
improved when the run reaches it.

Each layer is improved for the input that the improved layers before it give, so that errors do
not pile up.  Its target is the float model's sum: where bounds or an activation make the same of
both models' sums, there is no error to correct.

Memory: for every sample the live values of both graphs, and the moments of one layer.  ``capacity``
bounds the number of samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Constant, Node
from quantglow.interpreter.executor import Execution
from quantglow.interpreter.stacks import Stacks
from quantglow.ops.arithmetic import is_integer
from quantglow.ops.contraction import Contraction
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.processes.workers import later, side_by_side
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.convert.rules import Operands, integer_operands, renamed
from quantglow.quantization.plan.params import QuantizedWeights
from quantglow.quantization.recovery.adapt_weights import adapt_weights
from quantglow.quantization.recovery.cache import Cache
from quantglow.quantization.recovery.correct_bias import correct_bias
from quantglow.quantization.recovery.layer import Layer, flat
from quantglow.quantization.recovery.layer_data import LayerData, real_values
from quantglow.quantization.recovery.limit_dead_inputs import limit_dead_inputs
from quantglow.quantization.recovery.round_weights import round_weights
from quantglow.quantization.recovery.sample_values import SampleEvaluator, SampleValues
from quantglow.quantization.recovery.search_scales import search_scales
from quantglow.types import Array

TECHNIQUES: dict[str, Callable[[Layer], Layer]] = {
    "adapt-weights": adapt_weights,
    "round-weights": round_weights,
    "search-scales": search_scales,
    "correct-bias": correct_bias,
}
"""In the order in which they are applied to a layer.  ``options.RECOVERIES`` has their names."""

FED_BACK = frozenset({"round-weights", "search-scales"})
"""Techniques that round weights one by one; ``limit_dead_inputs`` comes before them."""

BARE: dict[str, Any] = {"activation": None, "low": -math.inf, "high": math.inf}
"""Fields of a contraction that gives its sums as they are."""

STAGE = "accuracy recovery"


@dataclass(frozen=True)
class Recovered:
    """An int8 graph with improved layers, and the real values of its ``ends`` and of the float
    graph's, [samples][ends]; without them if the deadline ended the run.  ``note``: what it left.
    """

    graph: Graph
    found: Sequence[Sequence[Array]] = ()
    wanted: Sequence[Sequence[Array]] = ()
    note: str = ""


def recover(
    graph: Graph,
    int8: Graph,
    samples: Sequence[Feeds],
    techniques: Sequence[str],
    per_channel: bool = True,
    progress: bool | str = False,
    cache: Cache | None = None,
    int8_samples: Sequence[Feeds] | None = None,
    ends: Sequence[str] = (),
    deadline: Deadline = NEVER,
) -> Recovered:
    """``int8`` with weights and biases that bring it closer to ``graph`` on the samples.

    ``int8`` is the quantized form of ``graph``; ``techniques`` are names of ``TECHNIQUES``.
    ``cache`` has the layers of earlier calls with the same graph and samples.
    ``int8_samples``: the samples, with int8 graphs for those of other shapes (``shape_variants``).
    ``ends``: names of nodes of both graphs, whose values are returned.
    The layers that are left at the deadline, or at Ctrl-C, keep their plain rounding.
    """
    if not samples or not (techniques or ends):
        return Recovered(int8)
    cache = cache or Cache()
    settings = frozenset(techniques), per_channel, cache.known(int8), ends
    both = _SideBySide(graph, int8, samples, int8_samples or samples, *settings)
    with side_by_side():
        steps = shown(both.int8_run, "Recovering accuracy", progress, len(int8.nodes))
        is_whole = not deadline.is_over and not any(deadline.is_over for _ in steps)
        improved = both.finished()
    cache.add(int8, {name: both.made[int8.by_name(name)] for name in both.improved})
    if is_whole:
        return Recovered(improved, both.found(), both.wanted())
    layers = len(both.names) + len(both.known)
    left = f"{len(both.left)} of {layers} layers have weights rounded to nearest"
    return Recovered(improved, note=deadline.note(STAGE, left) if both.left else "")


@dataclass
class _SideBySide:
    """Runs of both graphs, the float one up to the layer that the int8 one has reached.

    ``known``: operands of layers that were recovered before.  ``made``: the nodes of the new int8
    graph, by those of the old one.  ``sums``: float results before activation and bounds, of
    layers that the int8 run has not reached yet.
    """

    graph: Graph
    int8: Graph
    samples: Sequence[Feeds]
    int8_samples: Sequence[Feeds]
    techniques: frozenset[str]
    per_channel: bool
    known: Mapping[str, Operands]
    ends: Sequence[str] = ()
    made: dict[Node, Node] = field(default_factory=dict)
    sums: dict[str, Stacks] = field(default_factory=dict)
    improved: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.new_names = Names.of(self.int8)
        self.floats = SampleEvaluator(self.graph, self.samples)
        self.integers = SampleEvaluator(self.int8, self.int8_samples)
        self.float_run = self._run(self.graph, self._float_values)
        self.int8_run = self._run(self.int8, self._int8_values)
        self.float_step: Callable[[], None] = self._advance_to_layer
        self.names = {
            node.name
            for node in self.int8.nodes
            if self.techniques and isinstance(node, Contraction) and is_integer(node.x.type)
        } - self.known.keys()

    @property
    def left(self) -> set[str]:
        """Names of layers to improve that the run has not reached."""
        return self.names.difference(self.improved)

    def finished(self) -> Graph:
        """The new int8 graph; nodes that were not reached keep their plain rounding."""
        for node in self.int8.nodes:
            if node not in self.made:
                self.made[node] = self._moved(node)
        return self.int8.with_outputs(self.made[node] for _, node in self.int8.outputs)

    def found(self) -> list[list[Array]]:
        """The real values of the ends in the int8 graph, all of whose nodes have run."""
        found = list(zip(self.int8_run.ends, self.int8_run.run(), strict=True))
        return [
            [real_values(node, values.of(sample)) for node, values in found]
            for sample in range(len(self.samples))
        ]

    def wanted(self) -> list[list[Array]]:
        """``found`` in the float graph, which runs to its end if there are ends."""
        found = self.float_run.run() if self.ends else []
        return [[values.of(sample) for values in found] for sample in range(len(self.samples))]

    def _run(
        self, graph: Graph, evaluate: Callable[[Node, Sequence[SampleValues]], SampleValues]
    ) -> Execution[SampleValues]:
        return Execution(graph, [graph.by_name(name) for name in self.ends], evaluate)

    def _int8_values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """The values of an int8 node, which is improved first if it is a layer."""
        moved = self._moved(node)
        if node.name in self.names and isinstance(moved, Contraction):
            moved = self._improved(moved, operands)
            self.improved.append(node.name)
        self.made[node] = moved
        return self.integers.values(moved, operands)

    def _moved(self, node: Node) -> Node:
        """The node in the new graph, with its operands from before if it was recovered then."""
        if isinstance(node, Constant):
            return node
        moved = node.with_operands(tuple(self.made[operand] for operand in node.operands))
        if node.name in self.known and isinstance(moved, Contraction):
            known = renamed(self.known[node.name], self._operand_names(moved))
            return dataclasses.replace(moved, **known)
        return moved

    def _improved(self, node: Any, operands: Sequence[SampleValues]) -> Any:
        wanted = self._float_sums(node.name)
        data = LayerData(node, operands, self.integers, wanted, self.techniques)
        layer = data.layer(self.graph.by_name(node.name), self.per_channel)
        second = layer.moments.second
        techniques = self.techniques if second else self.techniques & {"correct-bias"}
        if techniques & FED_BACK:
            _ = layer.statistics.feedback  # Its computation begins, beside that of real weights.
            layer = limit_dead_inputs(layer)
        self.float_step = later(self._advance_to_layer, None)
        for name, technique in TECHNIQUES.items():
            if name in techniques:
                layer = technique(layer)
        return dataclasses.replace(node, **_operands(node, layer, self._operand_names(node)))

    def _operand_names(self, node: Any) -> dict[str, str]:
        """Names for the Constants of an improved layer: the old ones, where there are some."""
        b = self.new_names.fresh(f"{node.name}:b:q") if node.b is None else node.b.name
        return {"w": node.w.name, "b": b}

    def _float_sums(self, name: str) -> Stacks:
        """The float results of a layer before activation and bounds; the float run advances to
        it.
        """
        self.float_step()
        while name not in self.sums:
            next(iter(self.float_run))
        return self.sums.pop(name)

    def _advance_to_layer(self, _: None = None) -> None:
        """Run the float graph to its next layer, beside the rounding of one on another core."""
        known = len(self.sums)
        for _step in self.float_run:
            if len(self.sums) > known:
                return

    def _float_values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        if node.name not in self.names or not isinstance(node, Contraction):
            return self.floats.values(node, operands)
        bare: Any = dataclasses.replace(node, **BARE)
        self.sums[node.name] = self.floats.compute(bare, operands)
        return SampleValues(self.sums[node.name], None if node.is_bare else node)


def _operands(node: Any, layer: Layer, names: Mapping[str, str]) -> dict[str, Any]:
    """The Constants w and b of an improved layer."""
    steps = flat(layer.steps)[0]
    bias = None
    if node.b is not None or layer.bias.any():
        bias = np.rint(flat(layer.bias)[0] / steps).astype(np.int32)
    scales = (steps / layer.x.scale).astype(np.float32)
    weights = layer.product.weights(layer.integers).astype(np.int8)
    return integer_operands(names, QuantizedWeights(weights, scales, bias), layer.x)
