"""Stages 3 and 4: equalization and ranges, then the int8 graph.

Stage 3 decides equalization and ranges once for all int8 graphs of a model.  With ``measure_speed``
the layers are timed, and those that int8 makes slower on this machine stay float.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow.api.models.families import CaseValues, Decided, DecidedByValues
from quantglow.api.pipeline.calibration import Calibrated
from quantglow.api.pipeline.request import QuantizationRequest, computing
from quantglow.evaluation.call_times import time_calls
from quantglow.evaluation.layer_speed import (
    LayerSpeed,
    SpeedSearch,
    layer_speeds,
    slower,
    time_ratio,
    with_float,
)
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import ResultShapes
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops.external import External
from quantglow.quantization.accuracy_control import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.int16 import AUTO, value_names
from quantglow.quantization.plan.scope import match_names
from quantglow.quantization.quantizer import (
    Converted,
    QuantizedGraph,
    Quantizer,
    quantize_for_all_shapes,
)
from quantglow.quantization.rounding import RoundingCache
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.trials import Candidate
from quantglow.runtime.hybrid.loop_driver import LoopBodies
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.processes.interrupts import Deadline
from quantglow.support.timeline import recording


@dataclass(frozen=True)
class Prepared:
    """A calibrated model whose ranges are decided.

    config     the options; some layers may have been excluded since they are slower in int8
    candidate  equalized graph and ranges
    deadline   when recovery ends, too; the searches before it leave it half of the time
    cache      layers that were recovered before, so that none is twice
    speeds     measured times of layers, if ``measure_speed`` asked for them
    bodies     the int8 bodies of its loops
    """

    calibrated: Calibrated
    request: QuantizationRequest
    config: QuantizationConfig
    candidate: Candidate
    deadline: Deadline
    cache: RoundingCache = field(default_factory=RoundingCache)
    speeds: tuple[LayerSpeed, ...] = ()
    bodies: LoopBodies = field(default_factory=dict)


def prepare_quantization(calibrated: Calibrated, request: QuantizationRequest) -> Prepared:
    """Decide equalization and ranges; ``max_minutes`` begins here."""
    deadline = Deadline.after(request.max_minutes)
    graph, samples = calibrated.float_graph, calibrated.samples
    profile_with = request.config.profile_with
    with debug.time_stage("prepare", calibrated.seconds), computing(profile_with):
        preparation = prepare(
            graph,
            calibrated.profile,
            request.config,
            calibrated.deciding or (),
            progress=request.progress,
            deadline=deadline.halfway,
            runs=samples.take_runs(graph) if samples else None,
        )
    return Prepared(calibrated, request, request.config, preparation, deadline)


def _excluding(config: QuantizationConfig, names: Sequence[str]) -> QuantizationConfig:
    """The same options with more nodes in float."""
    exact = tuple(f"re:^{re.escape(name)}$" for name in names)
    return replace(config, nodes_to_exclude=(*(config.nodes_to_exclude or ()), *exact))


def _for_another_case(config: QuantizationConfig, graph: Graph) -> QuantizationConfig:
    """The options where only the main graph need have all nodes and values that they name."""
    scope, names = config.scope, value_names(graph)
    excluded = (*scope.names, *(config.nodes_to_exclude or ()))
    return replace(
        config,
        ignored_scope=replace(scope, names=excluded, validate=False),
        nodes_to_exclude=None,
        int16_activations=tuple(
            entry
            for entry in config.int16_activations
            if entry in AUTO or match_names(entry, names, validate=False)
        ),
    )


@dataclass(frozen=True)
class QuantizedCases:
    """A quantized model.

    overrides  precisions that accuracy control chose
    main       the int8 graph of the main case
    deadline   when its recovery ended at the latest, and that of the other cases
    """

    prepared: Prepared
    overrides: PrecisionOverrides
    main: QuantizedGraph
    deadline: Deadline

    @property
    def calibrated(self) -> Calibrated:
        """The stage before ``prepared``."""
        return self.prepared.calibrated

    @cached_property
    def decisions(self) -> DecidedByValues:
        """Decisions for each combination of deciding values in the data."""
        cases = self.cases.items()
        return {
            values: Decided(candidate.decisions, candidate.graph, self._late.get(values, ()))
            for values, candidate in cases
        }

    @property
    def _late(self) -> dict[CaseValues, ResultShapes]:
        """The shapes of results of the main cases."""
        calibrated = self.calibrated
        cases = (*calibrated.profile.main_cases, calibrated.case)
        return {case.values: case.late for case in cases}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the stages that the deadline cut short, in any of the cases."""
        return tuple(
            dict.fromkeys(note for candidate in self.cases.values() for note in candidate.notes)
        )

    @cached_property
    def cases(self) -> dict[CaseValues, QuantizedGraph]:
        """The int8 graph for each combination of deciding values in the data."""
        calibrated = self.calibrated
        cases = {calibrated.case.values: self.main}
        for case in calibrated.profile.main_cases if calibrated.case.values else ():
            if case.values in cases:
                continue
            profile_with = self.prepared.config.profile_with
            with debug.time_stage("quantize", calibrated.seconds), computing(profile_with):
                graph = calibrated.family.graph_at(case)
                samples = calibrated.samples
                cases[case.values] = quantize_for_all_shapes(
                    graph,
                    calibrated.profile,
                    _for_another_case(self.prepared.config, graph),
                    samples.deciding(case, graph)[1] if samples else None,
                    progress=False,
                    overrides=self.overrides,
                    deadline=self.deadline,
                )
        return cases


def quantize_cases(
    prepared: Prepared,
    overrides: PrecisionOverrides = NO_OVERRIDES,
    *,
    progress: bool | str | None = None,
    converted: Converted | None = None,
    deadline: Deadline | None = None,
) -> QuantizedCases:
    """Quantize, with accuracy recovery if there are samples.

    progress   None: as the request asks
    deadline   None: that of the prepared model
    converted  is shown the int8 graph before its weights are rounded
    """
    end = prepared.deadline if deadline is None else deadline
    quantizer = Quantizer(
        prepared.candidate,
        prepared.config,
        prepared.calibrated.deciding or (),
        progress=prepared.request.progress if progress is None else progress,
        cache=prepared.cache,
        overrides=overrides,
        converted=converted,
        deadline=end,
    )
    profile_with = prepared.config.profile_with
    with debug.time_stage("quantize", prepared.calibrated.seconds), computing(profile_with):
        candidate = quantizer.run()
    return QuantizedCases(prepared, overrides, candidate, end)


def _round_to_nearest(prepared: Prepared, config: QuantizationConfig) -> QuantizedGraph:
    """The int8 graph under other options, its weights not rounded against samples."""
    return Quantizer(prepared.candidate, config, progress=False).run()


def without_slower(prepared: Prepared, compiler: Compiler) -> Prepared:
    """The prepared model with those layers excluded that int8 would make slower, as measured.

    Raises ``CalibrationError`` if there is no sample to run.
    """
    calibrated = prepared.calibrated
    calibrated.require_samples("speed", "measure_speed")
    values = _external_values(calibrated)
    feeds = {**calibrated.checks.of_case[0], **values}

    def build(kept_float: Sequence[str]) -> Build:
        # Without samples: rounding weights against data takes long, and changes no time.
        config = _excluding(prepared.config, kept_float)
        graph = _without_external(_round_to_nearest(prepared, config).graph, values)
        return compiler.compile(graph, skip_branches=False)

    with debug.time_stage("measure speed", calibrated.seconds):
        layers = _round_to_nearest(prepared, prepared.config).report.nodes
        float_graph = _without_external(calibrated.float_graph, values)
        floats = compiler.compile(float_graph, skip_branches=False)
        integers = [n for n in layers if n.precision != "float"]
        speeds = layer_speeds(integers, time_calls(floats, feeds), time_calls(build(()), feeds))
        float_layers = SpeedSearch(
            lambda names: build(names).executable,
            lambda one, other: time_ratio(one, other, feeds),
            deadline=prepared.deadline.halfway,
        ).run(slower(speeds), [speed.name for speed in speeds])
    config = _excluding(prepared.config, float_layers)
    return replace(prepared, config=config, speeds=with_float(speeds, float_layers))


def _external_values(calibrated: Calibrated) -> dict[str, Array]:
    """The values of nodes that onnxruntime computes, in the float run of a sample of the case."""
    graph, values = calibrated.float_graph, dict[str, Array]()

    def keep(node: Node, value: Array) -> None:
        if isinstance(node, External):
            values[node.name] = value

    if any(isinstance(node, External) for node in graph.nodes):
        interpret(graph, calibrated.checks.of_case[0], [keep])
    return values


def _without_external(graph: Graph, values: Collection[str]) -> Graph:
    """The graph whose layers are timed: numbers that onnxruntime computes are among its inputs, and
    other values are left out."""
    fed = {name: Input(name=name, tensor=graph.by_name(name).type) for name in values}
    timed = graph.rebuild(lambda node: fed.get(node.name, node))
    numbers = (node for node in fed.values() if not node.type.dtype.is_object)
    outputs = (end for end in timed.outputs if not end[1].type.dtype.is_object)
    return replace(timed, inputs=(*timed.inputs, *numbers), outputs=tuple(outputs))


def time_layers(
    quantized: QuantizedCases, compiler: Compiler
) -> tuple[tuple[LayerSpeed, ...], dict[str, Any]]:
    """The times of all layers in float and as quantized, and the timeline of a run, in Chrome's
    format.

    Raises ``BackendError`` where a graph has no program of kernels.
    """
    calibrated, candidate = quantized.calibrated, quantized.main
    values = _external_values(calibrated)
    feeds = {**calibrated.checks.of_case[0], **values}
    floats, integers = (
        compiler.compile(_without_external(graph, values), skip_branches=False)
        for graph in (calibrated.float_graph, candidate.graph)
    )
    speeds = layer_speeds(
        candidate.report.nodes, time_calls(floats, feeds), time_calls(integers, feeds)
    )
    with recording() as trace:
        integers.executable.run(feeds)
    return speeds, trace.to_json()
