"""Layer-wise recovery: both graphs run side by side over all samples, and each int8 layer is
improved when the run reaches it.

Each layer is improved for the input that the improved layers before it give, so that errors do
not pile up.  Its target is the float model's sum: where bounds or an activation make the same of
both models' sums, there is no error to correct.

Memory: for every sample the live values of both graphs, and the moments of one layer.  ``capacity``
bounds the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import StoredConstant
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.processes.workers import side_by_side
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.convert.rules import Operands, integer_operands
from quantglow.quantization.plan.params import QuantizedWeights
from quantglow.quantization.recovery.adapt_weights import adapt_weights
from quantglow.quantization.recovery.cache import Cache
from quantglow.quantization.recovery.correct_bias import correct_bias
from quantglow.quantization.recovery.layer import Layer, flat
from quantglow.quantization.recovery.layer_data import plain_layer
from quantglow.quantization.recovery.limit_dead_inputs import limit_dead_inputs
from quantglow.quantization.recovery.moments import Statistics
from quantglow.quantization.recovery.round_weights import round_weights
from quantglow.quantization.recovery.sample_runs import Ends, Improved, Runs, SampleRuns, Task
from quantglow.quantization.recovery.search_scales import search_scales

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

Begin = Callable[[Task, Sequence[Feeds], Sequence[Feeds]], Runs]
"""Begins the runs of a task over samples, and these with int8 graphs for their shapes."""


@dataclass(frozen=True)
class Recovered:
    """An int8 graph with improved layers, and the real values of its ``ends`` and of the float
    graph's; without them if the deadline ended the run.  ``note``: what it left.
    """

    graph: Graph
    found: Ends = ()
    wanted: Ends = ()
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
    begin: Begin = SampleRuns,
) -> Recovered:
    """``int8`` with weights and biases that bring it closer to ``graph`` on the samples.

    ``int8`` is the quantized form of ``graph``; ``techniques`` are names of ``TECHNIQUES``.
    ``cache`` has the layers of earlier calls with the same graph and samples.
    ``int8_samples``: the samples, with int8 graphs for those of other shapes (``shape_variants``).
    ``ends``: names of nodes of both graphs, whose values are returned.
    ``begin``: begins the runs over the samples, here or elsewhere.
    The layers that are left at the deadline, or at Ctrl-C, keep their plain rounding.
    """
    if not samples or not (techniques or ends):
        return Recovered(int8)
    cache = cache or Cache()
    task = Task(graph, int8, frozenset(techniques), cache.known(int8), ends)
    improved, layers = Improved(task), task.layers
    with side_by_side():
        runs = begin(task, samples, int8_samples or samples)
        try:
            for name in shown(layers, "Recovering accuracy", progress):
                if deadline.is_over:
                    break
                improved.operands[name] = _improved(task, name, runs, improved, per_channel)
                runs.improve(name, improved.operands[name])
            is_whole = len(improved.operands) == len(layers) and not deadline.is_over
            found, wanted = runs.found() if is_whole else ((), ())
        finally:
            runs.end()
    result = improved.graph()
    made = {name: improved.made[int8.by_name(name)] for name in improved.operands}
    cache.add(int8, made)
    if is_whole:
        return Recovered(result, found, wanted)
    left = len(layers) - len(improved.operands)
    count = len(layers) + len(task.known)
    note = deadline.note(STAGE, f"{left} of {count} layers have weights rounded to nearest")
    return Recovered(result, note=note if left else "")


def _improved(task: Task, name: str, runs: Runs, improved: Improved, per_channel: bool) -> Operands:
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
