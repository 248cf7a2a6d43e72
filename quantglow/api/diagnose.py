"""``diagnose``: where the error of an int8 model comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from quantglow.api.models.families import with_steps
from quantglow.api.options import CalibratedModel, DataOptions
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.compilation import page_source
from quantglow.api.pipeline.quantization import (
    QuantizedCases,
    prepare_quantization,
    quantize_cases,
    time_layers,
)
from quantglow.api.pipeline.request import QuantizationRequest, import_request
from quantglow.evaluation import diagnosis
from quantglow.evaluation.accuracy import WORST
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.importer import as_onnx
from quantglow.quantization.options import QuantizationConfig
from quantglow.runtime.programs.build import Compiler
from quantglow.support.arguments import instance
from quantglow.support.errors import BackendError, CalibrationError, OptionError
from quantglow.support.options import (
    COUNT,
    SWITCH,
    OptionKind,
    option,
    option_values,
    takes_options,
)
from quantglow.support.processes.interrupts import keeping_best

CONFIG = OptionKind(
    lambda name, value: instance(name, value, QuantizationConfig, "a QuantizationConfig"), None
)


@dataclass(frozen=True, repr=False)
class DiagnoseArguments(DataOptions, CalibratedModel):
    """The arguments of ``diagnose``."""

    config: QuantizationConfig | None = option(
        None, CONFIG.or_none(), "a ``QuantizationConfig``, how the model is quantized"
    )
    _: KW_ONLY
    samples: int = option(2, COUNT, "calibration batches to measure on")
    worst: int = option(WORST, COUNT, "layers shown in detail")
    sensitivity: bool = option(
        True,
        SWITCH,
        "also what each layer alone does to the outputs: a run of the others for each, which is "
        "slow for deep networks",
    )
    measure_speed: bool = option(
        False,
        SWITCH,
        "also the time of each layer on this machine, in float and as quantized; without it "
        "nothing is compiled",
    )

    @property
    def request(self) -> QuantizationRequest:
        """The request that ``quantize_and_compile`` would make.  Raises ``OptionError``."""
        config = self.config or QuantizationConfig()
        if config.weights is not None:
            raise OptionError(
                "diagnose looks at int8 activations, and weights= leaves them out. Remedy: look at "
                "the report of quantize_and_compile."
            )
        data = option_values(self, DataOptions)
        return QuantizationRequest(config=config, verify=False, holds_out=True, **data)


@takes_options(DiagnoseArguments)
def diagnose(options: DiagnoseArguments) -> Diagnosis:
    """Sources of the error of the int8 model or float graph: every figure of every layer."""
    request = options.request
    model, calibration_data = as_onnx(options.model, options.calibration_data)
    model = with_steps(model, options.before, options.after)
    source = import_request(model, calibration_data, options.input_shapes)
    with keeping_best():
        calibration = calibrate(source, request)
        if not calibration.checks.feeds:
            raise CalibrationError(
                "a profile holds no samples to measure on. Remedy: pass the calibration samples."
            )
        candidate = quantize_cases(prepare_quantization(calibration, request))
        exact = candidate.main.candidate
        diagnosed = diagnosis.diagnose(
            exact.graph,
            candidate.main.graph,
            candidate.main.report,
            calibration.checks.of_case[: options.samples],
            exact.profile,
            sensitivity=options.sensitivity,
            shown=options.worst,
        )
        show_source = _with_speed if options.measure_speed else _with_source
        return show_source(diagnosed, candidate)


def _with_speed(diagnosed: Diagnosis, candidate: QuantizedCases) -> Diagnosis:
    """The diagnosis with times of layers and a timeline, or a note why there are none."""
    try:
        speeds, trace = time_layers(candidate, Compiler.of())
    except BackendError as error:
        note = f"the time of layers was not measured: {error}"
        return _with_source(replace(diagnosed, notes=(*diagnosed.notes, note)), candidate)
    return _with_source(replace(diagnosed, speeds=speeds), candidate, trace)


def _with_source(
    diagnosed: Diagnosis, candidate: QuantizedCases, trace: Mapping[str, Any] | None = None
) -> Diagnosis:
    """The diagnosis with the name, histograms and options that its page shows."""
    return replace(diagnosed, source=page_source(candidate, trace))
