"""Stage 4: the int8 graph."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow import debug
from quantglow.driver.computing import computing
from quantglow.driver.origins import CaseValues, Decided, DecidedByValues
from quantglow.driver.pipeline.calibrated import Calibrated
from quantglow.driver.pipeline.prepared import Prepared, for_another_case
from quantglow.lazy import cached_property
from quantglow.options import QuantizationConfig
from quantglow.processes.deadline import Deadline
from quantglow.quantization.accuracy_control.precision_steps import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.quantizer import (
    Converted,
    QuantizedGraph,
    Quantizer,
    quantize_for_all_shapes,
)


@dataclass(frozen=True)
class Quantized:
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
        return {values: Decided(made.decisions, made.graph) for values, made in cases}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the stages that the deadline cut short, in any of the cases."""
        return tuple(dict.fromkeys(note for made in self.cases.values() for note in made.notes))

    @cached_property
    def cases(self) -> dict[CaseValues, QuantizedGraph]:
        """The int8 graph for each combination of deciding values in the data."""
        calibrated = self.calibrated
        found = {calibrated.case.values: self.main}
        for case in calibrated.profile.main_cases if calibrated.case.values else ():
            if case.values in found:
                continue
            profile_with = self.prepared.config.profile_with
            with debug.timed("quantize", calibrated.seconds), computing(profile_with):
                graph = calibrated.family.at(case.shape_map, case.value_map)
                samples = calibrated.samples
                found[case.values] = quantize_for_all_shapes(
                    graph,
                    calibrated.profile,
                    for_another_case(self.prepared.config, graph),
                    samples.deciding(case, graph)[1] if samples else None,
                    progress=False,
                    overrides=self.overrides,
                    deadline=self.deadline,
                )
        return found


def quantized(
    prepared: Prepared,
    overrides: PrecisionOverrides = NO_OVERRIDES,
    *,
    progress: bool | str | None = None,
    converted: Converted | None = None,
    deadline: Deadline | None = None,
) -> Quantized:
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
    with debug.timed("quantize", prepared.calibrated.seconds), computing(profile_with):
        found = quantizer.run()
    return Quantized(prepared, overrides, found, end)


def rounded_to_nearest(prepared: Prepared, config: QuantizationConfig) -> QuantizedGraph:
    """The int8 graph under other options, its weights not rounded against samples."""
    return Quantizer(prepared.candidate, config, progress=False).run()
