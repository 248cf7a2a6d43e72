"""Stage 3: equalization and ranges, decided once for all int8 graphs of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quantglow import debug
from quantglow.driver.computing import computing
from quantglow.driver.pipeline.calibrated import Calibrated
from quantglow.driver.pipeline.request import QuantizationRequest
from quantglow.graph.graph import Graph
from quantglow.options import QuantizationConfig
from quantglow.processes.deadline import Deadline
from quantglow.quantization.plan.int16 import AUTO, value_names
from quantglow.quantization.plan.scope import matching
from quantglow.quantization.recovery import Cache
from quantglow.quantization.search.candidate import Candidate
from quantglow.quantization.search.preparation import prepare
from quantglow.report.speed.speed import LayerSpeed


@dataclass(frozen=True)
class Prepared:
    """A calibrated model whose ranges are decided.

    config     the options; some layers may have been excluded since they are slower in int8
    candidate  equalized graph and ranges
    deadline   when recovery ends, too; the searches before it leave it half of the time
    cache      layers that were recovered before, so that none is twice
    speeds     measured times of layers, if ``measure_speed`` asked for them
    """

    calibrated: Calibrated
    request: QuantizationRequest
    config: QuantizationConfig
    candidate: Candidate
    deadline: Deadline
    cache: Cache = field(default_factory=Cache)
    speeds: tuple[LayerSpeed, ...] = ()


def prepared(calibrated: Calibrated, request: QuantizationRequest) -> Prepared:
    """Decide equalization and ranges; ``max_minutes`` begins here."""
    deadline = Deadline.after(request.max_minutes)
    graph, samples = calibrated.float_graph, calibrated.samples
    profile_with = request.config.profile_with
    with debug.timed("prepare", calibrated.seconds), computing(profile_with):
        found = prepare(
            graph,
            calibrated.profile,
            request.config,
            calibrated.deciding or (),
            progress=request.progress,
            deadline=deadline.halfway,
            runs=samples.taken_runs(graph) if samples else None,
        )
    return Prepared(calibrated, request, request.config, found, deadline)


def excluding(config: QuantizationConfig, names: Sequence[str]) -> QuantizationConfig:
    """The same options with more nodes in float."""
    exact = tuple(f"re:^{re.escape(name)}$" for name in names)
    return replace(config, nodes_to_exclude=(*(config.nodes_to_exclude or ()), *exact))


def for_another_case(config: QuantizationConfig, graph: Graph) -> QuantizationConfig:
    """The options where only the main graph need have all nodes and values that they name."""
    scope, names = config.ignored_scope, value_names(graph)
    excluded = (*scope.names, *(config.nodes_to_exclude or ()))
    return replace(
        config,
        ignored_scope=replace(scope, names=excluded, validate=False),
        nodes_to_exclude=None,
        int16_activations=tuple(
            entry
            for entry in config.int16_activations
            if entry in AUTO or matching(entry, names, validate=False)
        ),
    )
