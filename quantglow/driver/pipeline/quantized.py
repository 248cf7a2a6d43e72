"""Stage 4: the int8 graph."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow import debug, quantization
from quantglow.driver.origins import Decided, DecidedByValues
from quantglow.driver.pipeline.calibrated import Calibrated
from quantglow.driver.pipeline.prepared import Prepared, for_another_case
from quantglow.options import QuantizationConfig
from quantglow.quantization.accuracy_control.precision_steps import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.quantizer import Converted, Quantizer, quantized_by


@dataclass(frozen=True)
class Quantized:
    """A quantized model; ``overrides`` are the precisions that accuracy control chose."""

    prepared: Prepared
    overrides: PrecisionOverrides
    found: quantization.Quantized

    @property
    def calibrated(self) -> Calibrated:
        """The stage before ``prepared``."""
        return self.prepared.calibrated

    def decisions(self) -> DecidedByValues:
        """Decisions for each combination of deciding values in the data."""
        calibrated = self.calibrated
        found = {calibrated.case.values: Decided(self.found.decisions, self.found.graph)}
        for case in calibrated.profile.main_cases if calibrated.case.values else ():
            if case.values in found:
                continue
            with debug.timed("quantize", calibrated.seconds):
                graph = calibrated.family.at(case.shape_map, case.value_map)
                samples = calibrated.samples
                result = quantization.quantize_for_all_shapes(
                    graph,
                    calibrated.profile,
                    for_another_case(self.prepared.config, graph),
                    samples.deciding(case, graph)[1] if samples else None,
                    progress=False,
                    overrides=self.overrides,
                )
            found[case.values] = Decided(result.decisions, result.graph)
        return found


def quantized(
    prepared: Prepared,
    overrides: PrecisionOverrides = NO_OVERRIDES,
    *,
    progress: bool | str | None = None,
    converted: Converted | None = None,
) -> Quantized:
    """Quantize, with accuracy recovery if there are samples.

    progress   None: as the request asks
    converted  is shown the int8 graph before its weights are rounded
    """
    quantizer = Quantizer(
        prepared.found,
        prepared.config,
        prepared.calibrated.deciding or (),
        progress=prepared.request.progress if progress is None else progress,
        cache=prepared.cache,
        overrides=overrides,
        converted=converted,
    )
    with debug.timed("quantize", prepared.calibrated.seconds):
        found = quantized_by(quantizer)
    return Quantized(prepared, overrides, found)


def rounded_to_nearest(prepared: Prepared, config: QuantizationConfig) -> quantization.Quantized:
    """The int8 graph under other options, its weights not rounded against samples."""
    return quantized_by(Quantizer(prepared.found, config, progress=False))
