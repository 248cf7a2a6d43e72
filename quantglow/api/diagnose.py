"""``diagnose``: where the error of an int8 model comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantglow.api.models.families import (
    with_steps,
)
from quantglow.api.options import InputShapes, Progress
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.compilation import page_source
from quantglow.api.pipeline.quantization import (
    QuantizedCases,
    prepare_quantization,
    quantize_cases,
    time_layers,
)
from quantglow.api.pipeline.request import QuantizationRequest, import_request
from quantglow.api.quantize import resolve_config
from quantglow.evaluation import diagnosis
from quantglow.evaluation.accuracy import WORST
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.importer import as_onnx
from quantglow.quantization.options import (
    QuantizationConfig,
)
from quantglow.runtime.programs.build import Compiler
from quantglow.support.arguments import (
    count,
    flag,
    options_named,
    progress_mode,
    shapes,
)
from quantglow.support.errors import BackendError, CalibrationError, OptionError
from quantglow.support.processes.interrupts import keeping_best


@options_named()
def diagnose(
    model: Any,
    calibration_data: Any,
    config: QuantizationConfig | None = None,
    *,
    subset_size: int = 300,
    samples: int = 2,
    sensitivity: bool = True,
    worst: int = WORST,
    progress: Progress = "auto",
    input_shapes: InputShapes | None = None,
    measure_speed: bool = False,
    before: Any = None,
    after: Any = None,
) -> Diagnosis:
    """Sources of the error of the int8 model or float graph: every figure of every layer.

    samples       calibration batches to measure on
    sensitivity   also what each layer alone does to the outputs: a run of the rest for each
    worst         layers shown in detail
    measure_speed the time of each layer on this machine, in float and as quantized; without it
                  nothing is compiled
    before, after steps that become part of the model, see ``compile``

    The other arguments are those of ``quantize_and_compile``.
    """
    samples = count("samples", samples)
    worst = count("worst", worst)
    subset_size = count("subset_size", subset_size)
    sensitivity = flag("sensitivity", sensitivity)
    measure_speed = flag("measure_speed", measure_speed)
    progress = progress_mode("progress", progress)
    config = resolve_config(config)
    if config.weights is not None:
        raise OptionError(
            "diagnose looks at int8 activations, and weights= leaves them out. Remedy: look at the "
            "report of quantize_and_compile."
        )
    request = QuantizationRequest(
        config=config, subset_size=subset_size, progress=progress, verify=False, holds_out=True
    )
    model, calibration_data = as_onnx(model, calibration_data)
    model = with_steps(model, before, after)
    source = import_request(model, calibration_data, shapes("input_shapes", input_shapes))
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
            calibration.checks.feeds[:samples],
            exact.profile,
            sensitivity=sensitivity,
            shown=worst,
        )
        return (
            _with_speed(diagnosed, candidate)
            if measure_speed
            else _with_source(diagnosed, candidate)
        )


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
