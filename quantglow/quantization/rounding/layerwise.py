"""Layer-wise rounding of an int8 graph against its float graph, with a cache of layers.

Each layer is improved for the input that the improved layers before it give, so that errors do
not pile up.  Its target is the float model's sum: where bounds or an activation make the same of
both models' sums, there is no error to correct.

Memory: for every sample the live values of both graphs, and the moments of one layer.  ``capacity``
bounds the number of samples.

Accuracy control quantizes many times, and most layers come again.  An improved layer is a pure
function of the int8 graph before it, and of the float graph and the samples, which stay the same
for one ``RoundingCache``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.ir.graph.attributes import encode
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, StoredConstant, operand_fields
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.plan.params import QuantizedWeights
from quantglow.quantization.rounding.layer import Layer, flat
from quantglow.quantization.rounding.layer_data import plain_layer
from quantglow.quantization.rounding.moments import Statistics
from quantglow.quantization.rounding.sample_runs import (
    Ends,
    RoundedLayers,
    RoundingRuns,
    RoundingTask,
    SampleRuns,
)
from quantglow.quantization.rounding.techniques import (
    adapt_weights,
    correct_bias,
    limit_dead_inputs,
    round_weights,
    search_scales,
)
from quantglow.quantization.rules import Operands, integer_operands
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.workers import side_by_side
from quantglow.support.progress import show

TECHNIQUES: dict[str, Callable[[Layer], Layer]] = {
    "adapt-weights": adapt_weights,
    "round-weights": round_weights,
    "search-scales": search_scales,
    "correct-bias": correct_bias,
}
"""In the order in which they are applied to a layer.  ``options.RECOVERIES`` has their names."""

FED_BACK = frozenset({"round-weights", "search-scales"})
"""Techniques that round weights one by one; ``limit_dead_inputs`` comes before them."""

STAGE = "accuracy recovery"

Begin = Callable[[RoundingTask, Sequence[Feeds], Sequence[Feeds]], RoundingRuns]
"""Begins the runs of a task over samples, and these with int8 graphs for their shapes."""


@dataclass(frozen=True)
class RoundedNetwork:
    """An int8 graph with improved layers, and the real values of its ``ends`` and of the float
    graph's; without them if the deadline ended the run.  ``note``: what it left.
    """

    graph: Graph
    int8_ends: Ends = ()
    float_ends: Ends = ()
    note: str = ""


def round_layers(
    graph: Graph,
    int8: Graph,
    samples: Sequence[Feeds],
    techniques: Sequence[str],
    per_channel: bool = True,
    progress: bool | str = False,
    cache: RoundingCache | None = None,
    int8_samples: Sequence[Feeds] | None = None,
    ends: Sequence[str] = (),
    deadline: Deadline = NEVER,
    begin: Begin = SampleRuns,
) -> RoundedNetwork:
    """``int8`` with weights and biases that bring it closer to ``graph`` on the samples.

    ``int8`` is the quantized form of ``graph``; ``techniques`` are names of ``TECHNIQUES``.
    ``cache`` has the layers of earlier calls with the same graph and samples.
    ``int8_samples``: the samples, with int8 graphs for those of other shapes (``shape_variants``).
    ``ends``: names of nodes of both graphs, whose values are returned.
    ``begin``: begins the runs over the samples, here or elsewhere.
    The layers that are left at the deadline, or at Ctrl-C, keep their plain rounding.
    """
    if not samples or not (techniques or ends):
        return RoundedNetwork(int8)
    cache = cache or RoundingCache()
    task = RoundingTask(graph, int8, frozenset(techniques), cache.lookup(int8), ends)
    improved, layers = RoundedLayers(task), task.layers
    with side_by_side():
        runs = begin(task, samples, int8_samples or samples)
        try:
            for name in show(layers, "Recovering accuracy", progress):
                if deadline.is_over:
                    break
                improved.operands[name] = _improve_layer(task, name, runs, improved, per_channel)
                runs.improve(name, improved.operands[name])
            is_whole = len(improved.operands) == len(layers) and not deadline.is_over
            int8_ends, float_ends = runs.ends() if is_whole else ((), ())
        finally:
            runs.end()
    result = improved.graph()
    rounded = {name: improved.nodes[int8.by_name(name)] for name in improved.operands}
    cache.add(int8, rounded)
    if is_whole:
        return RoundedNetwork(result, int8_ends, float_ends)
    left = len(layers) - len(improved.operands)
    count = len(layers) + len(task.rounded)
    note = deadline.note(STAGE, f"{left} of {count} layers have weights rounded to nearest")
    return RoundedNetwork(result, note=note if left else "")


def _improve_layer(
    task: RoundingTask, name: str, runs: RoundingRuns, improved: RoundedLayers, per_channel: bool
) -> Operands:
    """The improved operands of the next layer."""
    node: Any = task.int8.by_name(name)
    real: Any = task.graph.by_name(name)
    statistics = Statistics(runs.statistics(name))
    layer = plain_layer(node, real, statistics, per_channel)
    is_stored = isinstance(real.w, StoredConstant)
    changes_weights = layer.moments.second and not is_stored
    techniques = task.techniques if changes_weights else task.techniques & {"correct-bias"}
    if techniques & FED_BACK:
        _ = layer.statistics.feedback  # Its computation begins, beside that of real weights.
        layer = limit_dead_inputs(layer)
    runs.prefetch()
    for technique, apply in TECHNIQUES.items():
        if technique in techniques:
            layer = apply(layer)
    operands = _operands(node, layer, improved.names(node))
    return {**operands, "w": node.w} if is_stored else operands


def _operands(node: Any, layer: Layer, names: Mapping[str, str]) -> Operands:
    """The Constants w and b of an improved layer."""
    steps = flat(layer.steps)[0]
    bias = None
    if node.b is not None or layer.bias.any():
        bias = np.rint(flat(layer.bias)[0] / steps).astype(np.int32)
    scales = (steps / layer.x.scale).astype(np.float32)
    weights = layer.product.weights(layer.integers).astype(np.int8)
    return integer_operands(names, QuantizedWeights(weights, scales, bias), layer.x)


@dataclass
class RoundingCache:
    """The layers that ``round_layers`` improved for one float graph and its samples, by
    ``signatures``.

    Most models are rounded once, so signatures are made when a second graph is looked up.
    """

    layers: dict[str, Operands] = field(default_factory=dict)
    unsigned: list[tuple[Graph, Mapping[str, Any]]] = field(default_factory=list)

    def lookup(self, graph: Graph) -> dict[str, Operands]:
        """The operands of those layers of an int8 graph that were rounded before, by name."""
        while self.unsigned:
            self._sign(*self.unsigned.pop())
        if not self.layers:
            return {}
        return {
            node.name: self.layers[signature]
            for node, signature in signatures(graph).items()
            if signature in self.layers
        }

    def add(self, graph: Graph, improved: Mapping[str, Any]) -> None:
        """Store the improved layers of an int8 graph, by name."""
        if improved:
            self.unsigned.append((graph, improved))

    def _sign(self, graph: Graph, improved: Mapping[str, Any]) -> None:
        for node, signature in signatures(graph).items():
            if node.name in improved:
                layer = improved[node.name]
                self.layers[signature] = {"w": layer.w, "b": layer.b}


def signatures(graph: Graph) -> dict[Node, str]:
    """A digest for each node of all that its value depends on, beside the graph's inputs."""
    digests: dict[Node, str] = {}
    for node in graph.nodes:
        digest = hashlib.sha256(f"{node.op} {node.name} {encode(node.type)}".encode())
        if isinstance(node, Constant):
            digest.update(np.ascontiguousarray(node.value).tobytes())
        else:
            present = [getattr(node, name) is not None for name in operand_fields(type(node))]
            attributes = [f"{name}={encode(value)}" for name, value in node.attributes().items()]
            before = [digests[operand] for operand in node.operands]
            digest.update(repr((present, attributes, before)).encode())
        digests[node] = digest.hexdigest()
    return digests
