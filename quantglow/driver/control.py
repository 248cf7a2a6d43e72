"""``quantize_and_compile`` under an accuracy contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantglow import debug, interpreter
from quantglow.driver.pipeline import Job, compiled_float
from quantglow.errors import CalibrationError
from quantglow.lazy import cached_property
from quantglow.options import QuantizationConfig
from quantglow.profiling.data import Feeds
from quantglow.quantization.accuracy_control.control import Contract, Search, Trial
from quantglow.quantization.accuracy_control.precision_steps import (
    FLOAT,
    INT16,
    Raised,
    Step,
    float_steps,
    int16_steps,
    ranked,
)
from quantglow.quantization.deadline import Deadline
from quantglow.report.metrics import Sums
from quantglow.report.precision_overrides import RaisedLayer
from quantglow.report.report import report_of
from quantglow.report.sensitivity import noise_of_each
from quantglow.report.verification import MAX_SAMPLES
from quantglow.runtime.build import Machine
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import PartlyCompiledModel
from quantglow.runtime.precompile import kernels_ahead
from quantglow.types import Array

RANKING_SAMPLES = 2
"""Calibration batches on which the steps are ranked; each costs a run for each of them."""

FLOAT_ERROR = 1e-5
"""A relative error that float32 itself may make: one that is smaller is none."""

SHOWN = 8
"""Steps that a note names."""

Whole = Callable[[CompiledModel], Any]
"""Makes of what is compiled the model that the user gets."""


@dataclass(frozen=True)
class AccuracyContract:
    """``max_drop`` and its companions, before there is a model to measure.

    Raises ``OptionError`` for what is no contract.
    """

    max_drop: float
    drop_type: str = "absolute"
    validation_fn: Callable[..., float] | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        checked = self.measured_by(lambda model: 0.0)
        object.__setattr__(self, "max_drop", checked.max_drop)
        object.__setattr__(self, "max_minutes", checked.max_minutes)

    def measured_by(self, figure: Callable[[Any], float]) -> Contract[Any]:
        """The contract on ``validation_fn``, without it on another figure."""
        metric = figure if self.validation_fn is None else self.validation_fn
        return Contract(self.max_drop, metric, self.drop_type, self.max_minutes)


def quantized(
    job: Job,
    config: QuantizationConfig,
    contract: AccuracyContract | None,
    machine: Machine,
    whole: Whole,
    progress: bool | str,
) -> CompiledModel:
    """The job's model, quantized, compiled and checked, under a contract if there is one."""
    if contract is not None:
        return ControlledJob(job, config, contract, machine, whole).run(progress)
    with kernels_ahead(machine) as load_kernels:
        job.quantize(config, progress, converted=load_kernels)
    return job.compile(machine)


@dataclass(frozen=True)
class ControlledJob:
    """A job whose operators leave int8 until the contract holds."""

    job: Job
    config: QuantizationConfig
    contract: AccuracyContract
    machine: Machine
    whole: Whole

    def run(self, progress: bool | str) -> CompiledModel:
        """The model with the fewest steps found that satisfies the contract, checked.

        Raises ``AccuracyDropError`` with the best model, made whole, if there is none.
        """
        if not self.job.kept:
            raise CalibrationError(
                "a profile holds no samples to measure accuracy on. Remedy: pass the calibration "
                "samples together with max_drop."
            )
        contract = self.contract.measured_by(self.minus_relative_error)
        self.job.quantize(self.config, progress)
        exact = compiled_float(self.job.family, self.job.float_graph, self.machine)
        baseline = contract.figure(self.whole(exact))
        search = Search[Any, Step](contract, baseline, self.ranking, self.trial)
        with debug.timed("accuracy control", self.job.seconds):
            found = search.run(progress)
            self.quantize(found.steps)
        made = self.job.compile(self.machine)
        note = noted(search, found)
        report = with_steps(made.report, found.steps, note)
        return replace(made, reporter=lambda: report)

    def quantize(self, steps: Sequence[Step]) -> None:
        """The job's model after these steps."""
        self.job.quantize(self.config, progress=False, raised=Raised.by(steps))

    def trial(self, steps: Sequence[Step]) -> Any:
        """A model after these steps, not checked."""
        self.quantize(steps)
        made = self.machine.compile(self.job.quantized.graph)
        report = with_steps(report_of(made, {}), steps, shown_steps(steps))
        return self.whole(self.job.model_of(made, self.machine, report))

    def ranking(self, deadline: Deadline) -> list[Step]:
        """All steps.  What float is worth is measured where all that can be int16 is.

        What the deadline leaves no time for comes last, or is no step to int16.
        """
        samples = self.job.kept[:RANKING_SAMPLES]
        self.quantize(())
        plan = self.job.quantized.plan
        wide = int16_steps(plan, samples, deadline.halfway)
        if deadline.is_over:
            return ranked(plan, wide, float_steps(plan, {}))
        self.quantize(wide)
        exact = self.job.quantized.prepared.graph
        real = float_steps(plan, {})
        names = [step.name for step in real]
        harms = noise_of_each(exact, self.job.quantized.graph, names, samples, deadline)
        return ranked(plan, wide, float_steps(plan, harms))

    def minus_relative_error(self, model: CompiledModel | PartlyCompiledModel) -> float:
        """``-10 ** (-SQNR / 20)`` of the worst output on samples kept for the check; of a model
        in two parts the outputs of the compiled one.
        """
        compiled = model.head if isinstance(model, PartlyCompiledModel) else model
        totals = [Sums()] * len(self.job.float_graph.outputs)
        for feeds, wanted in zip(self.samples, self.wanted, strict=True):
            pairs = zip(totals, wanted, compiled.specialisations.at(feeds).run(feeds), strict=True)
            totals = [t + Sums.of(w, g) for t, w, g in pairs]
        return -max(FLOAT_ERROR, *(10 ** (-t.sqnr_db / 20) for t in totals))

    @cached_property
    def wanted(self) -> list[list[Array]]:
        """The float outputs on each of the samples."""
        return [interpreter.interpret(self.job.float_graph, feeds) for feeds in self.samples]

    @property
    def samples(self) -> Sequence[Feeds]:
        """Samples on which the error of the outputs is measured."""
        return self.job.kept[:MAX_SAMPLES]


def noted(search: Search[Any, Step], found: Trial[Step]) -> str:
    """What the search did, and what ended it early."""
    drop = f"drop {found.drop:.4g}, allowed {search.contract.max_drop:.4g}"
    tried = f"{len(search.trials)} model(s) tried" + (search.cut_short and f", {search.cut_short}")
    return f"accuracy control: {drop}; {tried}; {shown_steps(found.steps)}"


def shown_steps(steps: Sequence[Step]) -> str:
    """The steps in words, the first by name; the report's table has all."""
    if not steps:
        return "plain int8 does"
    named = ", ".join(map(str, steps[:SHOWN]))
    counts = Counter(step.precision for step in steps)
    more = ", …" if len(steps) > SHOWN else ""
    sums = f"{counts[INT16]} to int16 and {counts[FLOAT]} to float"
    return f"{len(steps)} step(s), {sums}: {named}{more}"


def with_steps(report: Any, steps: Sequence[Step], note: str) -> Any:
    """The report with the steps and one more note."""
    raised = tuple(RaisedLayer(s.name, s.precision, s.harm, s.seconds) for s in steps)
    return replace(report, notes=(*report.notes, note), raised=raised)
