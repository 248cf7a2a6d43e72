"""The stages of ``quantize_and_compile`` with what they hand to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow import debug, frontend, interrupts, profiling, quantization
from quantglow.driver.fallback import DelegationOnUse
from quantglow.driver.models import InputShapes, float_family_of
from quantglow.driver.origins import Built, Decided, DecidedByValues, programs_of
from quantglow.driver.samples import Samples, profile_in
from quantglow.driver.validation import Validation
from quantglow.errors import CalibrationError, OptionError, QuantglowError, UnsupportedOpError
from quantglow.graph.border import leaving
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.interrupts import say
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, first_of
from quantglow.profiling.progress import is_shown
from quantglow.quantization.accuracy_control.precision_steps import UNRAISED, Raised
from quantglow.quantization.deadline import NEVER, Deadline
from quantglow.quantization.plan.int16 import AUTO, value_names
from quantglow.quantization.plan.scope import matching
from quantglow.quantization.recovery import Memory
from quantglow.report import Report, verification
from quantglow.report.call_report import timed_calls
from quantglow.report.data_warnings import unlike_training
from quantglow.report.headline import SAME, UNSEEN, VALIDATION
from quantglow.report.outputs import Reference, reference
from quantglow.report.report import report_of
from quantglow.report.speed import (
    LayerSpeed,
    SpeedSearch,
    layer_speeds,
    slower,
    time_ratio,
    with_float,
)
from quantglow.report.verification import Verification, affordable, no_labels, until_interrupted
from quantglow.runtime.build import Build, Machine
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.specialisations import Specialisation
from quantglow.types import Array

NOTHING_QUANTIZED = "no operator became int8; the reasons are in the table of layers"


@dataclass(frozen=True)
class Cut:
    """A model that cannot be compiled to its end: ``error`` says why, ``parts`` where it is cut."""

    source: frontend.Source
    parts: frontend.Split
    error: UnsupportedOpError


@dataclass
class Job:
    """One model on its way.  ``float_graph`` has the shapes at which everything is decided: those
    that most of the data came in.  ``kept`` are samples of these shapes for the check, from
    ``origin``: ``validation``, those that are held out of calibration, or the same; ``data``
    are for all that is decided, where these are few also others (see ``other_shapes``).  Empty and
    None if there is a profile only.
    """

    model: Any
    verify: bool
    seconds: dict[str, float] = field(default_factory=dict)
    kept: Sequence[Feeds] = ()
    data: Sequence[Feeds] | None = None
    prepared: quantization.Prepared | None = None
    deadline: Deadline = NEVER
    memory: Memory = field(default_factory=Memory)
    samples: Samples | None = None
    holds_out: bool = False
    validation: Validation | None = None
    origin: str = SAME
    speeds: tuple[LayerSpeed, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def prepare(self, input_shapes: InputShapes | None, data: Any) -> Cut | None:
        """Import the model, or the part of it that can be compiled; then says what is left.

        Of a model that leaves dimensions free, the first of the calibration ``data`` tells.
        """
        self.given, shapes = data, input_shapes or {}
        first = Case.of({name: tuple(shape) for name, shape in shapes.items()})
        with debug.timed("import", self.seconds):
            try:
                self.family = float_family_of(self.model, input_shapes)
                if not self.family.is_single and (found := self._first_case()):
                    first = found
                    self._try_out(first)
            except UnsupportedOpError as error:
                source = frontend.open_model(self.model)
                parts = frontend.split(source, first.shape_map, first.value_map)
                if parts is None:
                    raise
                self.model = parts.head
                self.family = float_family_of(self.model, input_shapes)
                return Cut(source, parts, error)
        return None

    def _first_case(self) -> Case | None:
        """That of a profile, or of the first sample, which stays to be read.  None for samples
        that do not fit: the profiler, which comes next, says why.
        """
        if (known := profile_in(self.given)) is not None:
            return next(iter(known.main_cases), None)
        with suppress(CalibrationError):
            feeds, self.given = first_of(self.given, self.family.signature)
            return None if feeds is None else self.family.case_of(feeds)
        return None

    def _try_out(self, case: Case) -> None:
        """Import the model for a case.  Raises ``UnsupportedOpError``; the profiler other ones."""
        try:
            self.family.at(case.shape_map, case.value_map)
        except UnsupportedOpError:
            raise
        except QuantglowError:
            pass

    def calibrate(self, subset_size: int, progress: bool | str, seed: int = 0) -> None:
        """Profile, or take the profile given, and choose the shapes; ``seed`` draws the samples
        that are kept where they are too many.
        """
        with debug.timed("profile", self.seconds):
            known = profile_in(self.given)
            samples = Samples(self.given, self.family, subset_size, self._splits, seed=seed)
            self.profile = known or profiling.profile(
                self.family,
                samples,
                subset_size=subset_size,
                progress=progress,
                run=samples.run,
            )
        self.case = main_case(self.family, self.profile)
        self.float_graph = self.family.at(self.case.shape_map, self.case.value_map)
        if known is None:
            self.samples = samples
            self.kept, self.data = samples.deciding(self.case, self.float_graph)
            if unseen := samples.unseen(self.case):
                self.kept, self.origin = affordable(unseen, self.float_graph), UNSEEN
            if self.verify:
                self.warnings = self._warnings(samples)
                if is_shown(progress):
                    for warning in self.warnings:
                        say(f"warning: {warning}")
        if self.validation is not None:
            self._take_validation(self.validation.at(self.case, self.family))

    @property
    def _splits(self) -> bool:
        return self.holds_out and self.validation is None

    def validate_on(self, data: Any) -> None:
        """Take these samples for the check.  Raises ``CalibrationError``."""
        self.validation = Validation.of(data, self.family.signature)

    def _take_validation(self, fitting: Validation) -> None:
        """Check on the samples of ``fitting``, if there are any."""
        assert self.validation is not None
        if missing := len(self.validation.samples) - len(fitting.samples):
            self.notes += (
                f"{missing} of {len(self.validation.samples)} samples of validation_data have "
                f"other shapes than the program that is checked ({self.case})",
            )
        if fitting.samples:
            fitting.check(self.float_graph)
            self.kept, self.origin = fitting.samples, VALIDATION
        self.validation = fitting

    def quantize(
        self,
        config: QuantizationConfig,
        progress: bool | str = "auto",
        raised: Raised = UNRAISED,
        converted: quantization.Converted | None = None,
    ) -> None:
        """Quantize, with accuracy recovery if there are samples.  What is decided before that
        (equalization, ranges) is decided once, whatever is ``raised`` out of int8 later.
        """
        self._choose_ranges(config, progress)
        with debug.timed("quantize", self.seconds):
            self.quantized = self._quantized(config, self.data, progress, raised, converted)
        self.config, self.raised = config, raised

    def _choose_ranges(self, config: QuantizationConfig, progress: bool | str) -> None:
        if self.prepared is None:
            with debug.timed("prepare", self.seconds):
                self.prepared = quantization.prepare(
                    self.float_graph,
                    self.profile,
                    config,
                    self.data or (),
                    progress=progress,
                    deadline=self.deadline,
                    runs=self.samples.taken_runs(self.float_graph) if self.samples else None,
                )

    def _quantized(
        self,
        config: QuantizationConfig,
        data: Sequence[Feeds] | None,
        progress: bool | str,
        raised: Raised = UNRAISED,
        converted: quantization.Converted | None = None,
    ) -> quantization.Quantized:
        graphs, known = (self.float_graph, self.profile), (self.prepared, self.memory)
        return quantization.quantize_for_all_shapes(
            *graphs, config, data, progress, *known, raised, converted
        )

    def _decided(self) -> DecidedByValues:
        """What is decided, for each combination of deciding values in the data."""
        found = {self.case.values: Decided(self.quantized.decisions, self.quantized.graph)}
        for case in self.profile.main_cases if self.case.values else ():
            if case.values in found:
                continue
            with debug.timed("quantize", self.seconds):
                graph = self.family.at(case.shape_map, case.value_map)
                data = self.samples.deciding(case, graph)[1] if self.samples else None
                config = for_another_case(self.config, graph)
                result = quantization.quantize_for_all_shapes(
                    graph, self.profile, config, data, progress=False, raised=self.raised
                )
            found[case.values] = Decided(result.decisions, result.graph)
        return found

    def without_slower(
        self, config: QuantizationConfig, machine: Machine, progress: bool | str
    ) -> QuantizationConfig:
        """The options with those layers in float that int8 would make slower, as measured."""
        if not self.kept:
            raise CalibrationError(
                "a profile holds no samples to measure speed on. Remedy: pass the calibration "
                "samples together with measure_speed."
            )
        feeds = self.kept[0]

        def build(kept_float: Sequence[str]) -> Build:
            # Without data: rounding weights with care takes long, and changes no time.
            quantized = self._quantized(excluding(config, kept_float), None, progress)
            return machine.compile(quantized.graph, skip_branches=False)

        self._choose_ranges(config, progress)
        with debug.timed("measure speed", self.seconds):
            layers = self._quantized(config, None, progress).report.nodes
            times = (
                timed_calls(machine.compile(self.float_graph, skip_branches=False), feeds),
                timed_calls(build(()), feeds),
            )
            speeds = layer_speeds([n for n in layers if n.precision != "float"], *times)
            kept = SpeedSearch(
                lambda names: build(names).executable,
                lambda one, other: time_ratio(one, other, feeds),
                deadline=self.deadline,
            ).run(slower(speeds), [speed.name for speed in speeds])
        self.speeds = with_float(speeds, kept)
        return excluding(config, kept)

    def end_searches_after(self, max_minutes: float | None) -> None:
        """From now on searches take this long at most; None: as long as they need."""
        self.deadline = Deadline.after(max_minutes)

    def compile(self, machine: Machine) -> CompiledModel:
        """The quantized model, checked."""
        checked = list(until_interrupted(self.kept if self.verify else ()))
        with reference(self.model, self.quantized.prepared.graph, checked) as wanted:
            build = machine.compile(self.quantized.graph)
            seconds = {**self.seconds, **build.seconds}
            with debug.timed("verify", seconds):
                found = self._verification(build, wanted, checked)
        report = replace(
            checked_report(build, seconds, found),
            notes=(*self.notes, *found.notes, *interrupts.notes()),
            warnings=self.warnings,
            origin=self.origin if found.samples else "",
            profile={"samples": self.profile.samples, "tensors": len(self.profile.histograms)},
            speeds=self.speeds,
        )
        return self.model_of(build, machine, report)

    def _warnings(self, samples: Samples) -> tuple[str, ...]:
        """Signs that the calibration data is not what the model was trained on."""
        found = samples.seen.warnings()
        if not isinstance(self.model, Graph):
            imported = frontend.open_model(self.model).at(self.case)
            found += unlike_training(imported, samples.fitting(self.case)[1])
        return tuple(found)

    def model_of(self, build: Build, machine: Machine, report: Report) -> CompiledModel:
        """The compiled model of a build of the quantized graph."""
        first = Specialisation(self.quantized.graph, build, self.case)
        built = Built(self.family, self._decided())
        whole = DelegationOnUse(lambda: built.source, machine)
        programs = programs_of(built, first, machine, whole)
        return CompiledModel(programs, lambda: report, self.profile)

    def _verification(
        self, build: Build, wanted: Reference, checked: Sequence[Feeds]
    ) -> Verification:
        precisions = self.quantized.report
        is_float = precisions.count("float") == len(precisions.nodes)
        nothing = (NOTHING_QUANTIZED,) if is_float else ()
        if not self.verify:
            return verification.unverified(precisions, *self.family.notes, *nothing)
        ends = self.quantized.graph.signature.outputs

        def run(feeds: Mapping[str, Array]) -> list[Array]:
            return leaving(ends, build.executable.run(feeds))

        prepared = self.quantized.prepared
        graphs = (prepared.graph, self.quantized.graph, precisions)
        right = self.validation.right if self.validation else no_labels
        found = verification.verify(wanted, *graphs, run, checked, prepared.profile, right)
        return replace(found, notes=(*found.notes, *self.family.notes, *nothing))


def main_case(family: Family, profile: Profile) -> Case:
    """The only shapes, else those of most data, else batch 1.

    Raises ``OptionError`` where other dimensions are free and nothing tells their sizes.
    """
    shapes = family.signature.default
    if profile.main_cases and not family.is_single:
        return profile.main_cases[0]
    if shapes is None or family.deciding:
        ports = ", ".join(f"{port.name}: {port}" for port in family.signature.inputs)
        raise OptionError(
            f"the model leaves dimensions free ({ports}) and the profile does not tell the shapes "
            "it ran at. Remedy: profile the model again, or pass input_shapes."
        )
    return Case.of(shapes)


def compiled_float(family: Family, graph: Graph, machine: Machine) -> CompiledModel:
    """A float model, compiled for the shapes of ``graph`` at once."""
    build = machine.compile(graph)
    programs = programs_of(Built(family), Specialisation(graph, build), machine)
    return CompiledModel(programs, lambda: report_of(build, {}))


def checked_report(build: Build, seconds: Mapping[str, float], found: Verification) -> Report:
    """The report of a build that was compared with the float model."""
    return replace(
        report_of(build, seconds),
        outputs=found.outputs,
        layers=found.layers,
        compared_with=found.compared_with,
        samples=found.samples,
        right=found.right,
        notes=found.notes,
    )


def excluding(config: QuantizationConfig, names: Sequence[str]) -> QuantizationConfig:
    """The same options with more nodes in float."""
    exact = tuple(f"re:^{re.escape(name)}$" for name in names)
    return replace(config, nodes_to_exclude=(*(config.nodes_to_exclude or ()), *exact))


def for_another_case(config: QuantizationConfig, graph: Graph) -> QuantizationConfig:
    """The options where only the main graph need have all nodes and values that they name."""
    scope, names = config.ignored_scope, value_names(graph, None)
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
