"""``quantize_and_compile`` under an accuracy contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantglow import interpreter
from quantglow.api.pipeline.calibration import Calibrated
from quantglow.api.pipeline.compilation import compile_cases, compile_float, compile_quantized
from quantglow.api.pipeline.quantization import Prepared, QuantizedCases, quantize_cases
from quantglow.api.pipeline.request import AccuracyContract
from quantglow.evaluation.layers import MAX_SAMPLES, noise_of_each
from quantglow.evaluation.metrics import ErrorSums
from quantglow.evaluation.report import PrecisionOverride, Report, build_report
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.accuracy_control import (
    FLOAT,
    INT16,
    AccuracySearch,
    Contract,
    PrecisionOverrides,
    PrecisionStep,
    Trial,
    float_steps,
    int16_steps,
    rank_steps,
)
from quantglow.quantization.shape_variants import graph_for
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.loop_driver import LoopBodies
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import OptionError
from quantglow.support.processes.interrupts import Deadline

RANKING_SAMPLES = 2
"""Calibration batches on which the steps are ranked; each costs a run for each of them."""

FLOAT_ERROR = 1e-5
"""A relative error that float32 itself may make: one that is smaller is none."""

SHOWN = 8
"""Steps that a note names."""


@dataclass(frozen=True)
class AccuracyControl:
    """Search for the fewest operators that leave int8 until the contract holds.

    ``built``: of the models tried the last one and the best so far, by their steps.
    """

    prepared: Prepared
    contract: AccuracyContract
    compiler: Compiler
    built: dict[tuple[PrecisionStep, ...], QuantizedCases] = field(default_factory=dict)

    @property
    def calibrated(self) -> Calibrated:
        """The profiled model."""
        return self.prepared.calibrated

    def run(self) -> CompiledModel:
        """The model with the fewest steps found that satisfies the contract, checked.

        Raises ``AccuracyDropError`` with the best model if there is none.
        """
        self.calibrated.require_samples("accuracy", "max_drop")
        contract = self.contract.measure_by(self.minus_relative_error)
        baseline = contract.figure(self.with_bodies({}))
        bodies = self.keeping(contract, baseline)
        return replace(self, prepared=replace(self.prepared, bodies=bodies)).search(
            contract, baseline
        )

    def with_bodies(self, bodies: LoopBodies) -> CompiledModel:
        """The float model with such bodies of its loops."""
        calibrated = self.calibrated
        return compile_float(calibrated.family, calibrated.float_graph, self.compiler, bodies)

    def keeping(self, contract: Contract[Any], baseline: float) -> LoopBodies:
        """The int8 bodies of loops with which the model, in float else, keeps the contract; each
        beside those before it."""
        bodies: dict[str, CompiledModel | str] = {}
        for name, body in self.prepared.bodies.items():
            bodies[name] = body
            if isinstance(body, str):
                continue
            drop = contract.drop(baseline, contract.figure(self.with_bodies(bodies)))
            if drop > contract.max_drop:
                bodies[name] = f"in int8 the drop would be {drop:.4g}"
        return bodies

    def search(self, contract: Contract[Any], baseline: float) -> CompiledModel:
        """The search for steps of the layers that are part of no loop."""
        calibrated, progress = self.calibrated, self.prepared.request.progress
        plain = quantize_cases(self.prepared)
        search = AccuracySearch[Any, PrecisionStep](
            contract,
            baseline,
            lambda deadline: self.ranking(plain, deadline),
            lambda steps: self.trial(tuple(steps), search),
        )
        with debug.time_stage("accuracy control", calibrated.seconds):
            best = search.run(progress)
        model = compile_quantized(self.built[best.steps], self.compiler)
        report = _with_steps(model.report, best.steps, note(search, best))
        return replace(model, reporter=lambda: report)

    def quantized(self, steps: Sequence[PrecisionStep], deadline: Deadline) -> QuantizedCases:
        """The model after these steps; the deadline cuts its recovery short."""
        overrides = PrecisionOverrides.by(steps)
        return quantize_cases(self.prepared, overrides, progress=False, deadline=deadline)

    def trial(
        self, steps: tuple[PrecisionStep, ...], search: AccuracySearch[Any, PrecisionStep]
    ) -> Any:
        """A model after these steps, not checked."""
        candidate = self.quantized(steps, search.deadline)
        self.keep(steps, candidate, search.best_trial)
        programs = compile_cases(candidate, self.compiler)
        report = replace(build_report(programs.first.build, {}), notes=candidate.notes)
        report = _with_steps(report, steps, describe_steps(steps))
        return CompiledModel(programs, lambda: report, self.calibrated.profile)

    def keep(
        self,
        steps: tuple[PrecisionStep, ...],
        candidate: QuantizedCases,
        best: Trial[PrecisionStep] | None,
    ) -> None:
        """Store a model, and forget others than the best before it.

        A model made once more would be another if its deadline came at another step of it.
        """
        for other in self.built.keys() - ({best.steps} if best else set()):
            del self.built[other]
        self.built[steps] = candidate

    def ranking(self, plain: QuantizedCases, deadline: Deadline) -> list[PrecisionStep]:
        """All steps.  The worth of float is measured where all values that can be int16 are.

        Steps that the deadline leaves no time for come last, or are not offered as int16.
        """
        samples, plan = self.calibrated.checks.of_case[:RANKING_SAMPLES], plain.main.plan
        wide = int16_steps(plan, samples, deadline.halfway)
        if deadline.is_over:
            return rank_steps(plan, wide, float_steps(plan, {}))
        widened = self.quantized(wide, deadline).main
        names = [step.name for step in float_steps(plan, {})]
        exact = widened.candidate.graph
        noise = noise_of_each(exact, widened.graph, names, samples, deadline)
        return rank_steps(plan, wide, float_steps(plan, noise))

    def minus_relative_error(self, model: CompiledModel) -> float:
        """``-10 ** (-SQNR / 20)`` of the worst output on samples kept for the check.  Integers and
        strings count where no output is float.  Raises ``OptionError`` where none is a tensor.
        """
        ends = list(map(TensorInfo.of, self.calibrated.float_graph.signature.outputs))
        floats = [i for i, end in enumerate(ends) if end.is_numeric and end.dtype.kind == "f"]
        positions = floats or [i for i, end in enumerate(ends) if end.is_tensor]
        if not positions:
            raise OptionError(
                "max_drop measures tensors, and the model gives none. Remedy: pass validation_fn."
            )
        totals = dict.fromkeys(positions, ErrorSums())
        for feeds, expected in zip(self.samples, self.expected, strict=True):
            results = model.specialisations.at(feeds).run(feeds)
            totals = {i: t + _output_error(expected[i], results[i]) for i, t in totals.items()}
        return -max(FLOAT_ERROR, *(10 ** (-t.sqnr_db / 20) for t in totals.values()))

    @cached_property
    def expected(self) -> list[list[Array]]:
        """The float outputs on each of the samples."""
        graph = self.calibrated.float_graph
        return [interpreter.interpret(graph_for(feeds, graph), feeds) for feeds in self.samples]

    @property
    def samples(self) -> Sequence[Feeds]:
        """Samples on which the error of the outputs is measured."""
        return self.calibrated.checks.feeds[:MAX_SAMPLES]


def _output_error(expected: Array, result: Array) -> ErrorSums:
    """The error of an output; nothing is right in one of another size, as operators that choose
    among rounded numbers may give.  The error of strings is the share of those that differ."""
    if expected.size != result.size:
        result = np.zeros_like(expected)
    if expected.dtype.kind == "O":
        same = (expected == result).astype(np.float32)
        expected, result = np.ones_like(same), same
    return ErrorSums.of(expected, result)


def note(search: AccuracySearch[Any, PrecisionStep], trial: Trial[PrecisionStep]) -> str:
    """A note on the search, and on its early end."""
    drop = f"drop {trial.drop:.4g}, allowed {search.contract.max_drop:.4g}"
    tried = f"{len(search.trials)} model(s) tried" + (search.cut_short and f", {search.cut_short}")
    return f"accuracy control: {drop}; {tried}; {describe_steps(trial.steps)}"


def describe_steps(steps: Sequence[PrecisionStep]) -> str:
    """The steps in words, the first by name; the report's table has all."""
    if not steps:
        return "plain int8 does"
    named = ", ".join(map(str, steps[:SHOWN]))
    counts = Counter(step.precision for step in steps)
    more = ", …" if len(steps) > SHOWN else ""
    sums = f"{counts[INT16]} to int16 and {counts[FLOAT]} to float"
    return f"{len(steps)} step(s), {sums}: {named}{more}"


def _with_steps(report: Report, steps: Sequence[PrecisionStep], note: str) -> Report:
    """The report with the steps and one more note."""
    overrides = tuple(PrecisionOverride(s.name, s.precision, s.error, s.seconds) for s in steps)
    return replace(report, notes=(*report.notes, note), precision_overrides=overrides)
