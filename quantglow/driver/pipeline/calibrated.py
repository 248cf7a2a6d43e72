"""Stage 2: the profile, the shapes at which everything is decided, and the samples that decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantglow import debug, frontend, profiling
from quantglow.driver.computing import computing
from quantglow.driver.pipeline.imported import Imported
from quantglow.driver.pipeline.request import QuantizationRequest
from quantglow.driver.samples import Samples, profile_in
from quantglow.driver.validation import Validation
from quantglow.errors import CalibrationError, OptionError
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.processes.interrupts import say
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import is_shown
from quantglow.report.accuracy.headline import SAME, UNSEEN, VALIDATION
from quantglow.report.accuracy.verification import affordable
from quantglow.report.samples.data_warnings import unlike_training
from quantglow.report.samples.input_scale import out_of_scale


@dataclass(frozen=True)
class CheckSamples:
    """Samples on which the result is compared with the float model.

    origin      where they are from: ``report.accuracy.headline.SAME``, ``UNSEEN`` or ``VALIDATION``
    validation  the user's own, with their labels
    notes       remarks for the report
    """

    feeds: Sequence[Feeds] = ()
    origin: str = SAME
    validation: Validation | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibrated:
    """A profiled model.

    case         the shapes at which everything is decided: those of most samples
    float_graph  the graph for that case
    samples      the reader of the calibration data; None if there is a profile only
    deciding     samples for all that is decided, where these are few also of other shapes
                 (``shape_variants.ShapeVariant``); None if there is a profile only
    warnings     signs that the data is not what the model was trained on
    """

    imported: Imported
    profile: Profile
    case: Case
    float_graph: Graph
    samples: Samples | None = None
    deciding: Sequence[Feeds] | None = None
    checks: CheckSamples = CheckSamples()
    warnings: tuple[str, ...] = ()

    @property
    def family(self) -> Family:
        """The float graphs, one for each case."""
        return self.imported.family

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by stage."""
        return self.imported.seconds

    def require_samples(self, measured: str, option: str) -> None:
        """Raise ``CalibrationError`` if there is no sample on which ``option`` can measure."""
        if not self.checks.feeds:
            raise CalibrationError(
                f"a profile holds no samples to measure {measured} on. Remedy: pass the "
                f"calibration samples together with {option}."
            )


def calibrated(imported: Imported, request: QuantizationRequest) -> Calibrated:
    """Profile the model on the request's samples, or take the profile that they are."""
    family, given = imported.family, imported.data
    validation = None
    if request.validation_data is not None:
        validation = Validation.of(request.validation_data, family.signature)
    known = profile_in(given)
    samples = Samples(
        given,
        family,
        request.subset_size,
        holds_out=request.holds_out and validation is None,
        seed=request.config.seed,
    )
    with debug.timed("profile", imported.seconds), computing(request.config.profile_with):
        profile = known or profiling.profile(
            family,
            samples,
            subset_size=request.subset_size,
            progress=request.progress,
            run=samples.run,
        )
    case = main_case(family, profile)
    graph = family.at(case.shape_map, case.value_map)
    checks, reader, deciding, warnings = CheckSamples(), None, None, tuple[str, ...]()
    if known is None:
        reader = samples
        kept, deciding = samples.deciding(case, graph)
        unseen = samples.unseen(case)
        checks = CheckSamples(affordable(unseen, graph), UNSEEN) if unseen else CheckSamples(kept)
        if request.verify:
            warnings = data_warnings(imported.model, samples, case, graph, request.progress)
    if validation is not None:
        checks = _validating(checks, validation, case, family)
        if checks.validation and imported.cut is None:
            checks.validation.check(graph)
    return Calibrated(imported, profile, case, graph, reader, deciding, checks, warnings)


def _validating(
    checks: CheckSamples, validation: Validation, case: Case, family: Family
) -> CheckSamples:
    """The check on the user's samples of ``case``; on ``checks`` if there are none of it."""
    fitting, notes = validation.at(case, family), checks.notes
    if missing := len(validation.samples) - len(fitting.samples):
        notes += (
            f"{missing} of {len(validation.samples)} samples of validation_data have "
            f"other shapes than the program that is checked ({case})",
        )
    if not fitting.samples:
        return CheckSamples(checks.feeds, checks.origin, fitting, notes)
    return CheckSamples(fitting.samples, VALIDATION, fitting, notes)


def data_warnings(
    model: Any, samples: Samples, case: Case, graph: Graph, progress: bool | str
) -> tuple[str, ...]:
    """Signs that the samples are not what the model was trained on, shown as they are found.

    ``graph``: the optimized graph of the case.
    """
    found, fitting = samples.seen.warnings(), samples.fitting(case)[1]
    unlike: list[str] = []
    if not isinstance(model, Graph):
        unlike = unlike_training(frontend.open_model(model).at(case), fitting)
    found += unlike or out_of_scale(graph, fitting)
    if is_shown(progress):
        for warning in found:
            say(f"warning: {warning}")
    return tuple(found)


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
