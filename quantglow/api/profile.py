"""``profile``: the ranges of all tensors over calibration data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantglow.api.models.families import with_steps
from quantglow.api.options import CalibratedModel, DataOptions
from quantglow.api.pipeline.distributed_profiling import check_for_model, profile_on
from quantglow.api.pipeline.loop_bodies import profile_with_bodies
from quantglow.api.pipeline.request import computing, import_request
from quantglow.api.pipeline.samples import profile_in
from quantglow.importer import as_onnx
from quantglow.profiling import Profile
from quantglow.quantization.options import ProfileWith, QuantizationConfig
from quantglow.support.errors import CalibrationError
from quantglow.support.options import OBJECT, option, same_option, takes_options
from quantglow.support.processes.interrupts import keeping_best


@dataclass(frozen=True, kw_only=True, repr=False)
class ProfileArguments(DataOptions, CalibratedModel):
    """The arguments of ``profile``."""

    profile_with: ProfileWith = same_option(QuantizationConfig, "profile_with")
    client: Any = option(
        None,
        OBJECT,
        "a ``dask.distributed.Client``, whose workers run the model on the samples.  The profile "
        "equals that of one process bit for bit, however samples are spread and whichever workers "
        "die, where the processors and their linear algebra are of one kind",
    )


@takes_options(ProfileArguments)
def profile(options: ProfileArguments) -> Profile:
    """Histograms of every tensor of a model or graph over calibration data.

    Samples of a model that leaves dimensions free may have different shapes.  A model whose shapes
    stop being known somewhere is profiled up to there.

    Raises ``BackendError`` where the workers of ``client`` are of several kinds, or give no result.
    """
    if profile_in(options.calibration_data) is not None:
        raise CalibrationError(
            "the calibration data is a profile already. Remedy: pass samples to record another one."
        )
    model, samples = as_onnx(options.model, options.calibration_data)
    model = with_steps(model, options.before, options.after)
    workers = None if options.client is None else check_for_model(options.client, model)
    source = import_request(model, samples, options.input_shapes)
    with keeping_best():
        if workers is not None:
            return profile_on(workers, source, options, options.profile_with)
        with computing(options.profile_with):
            return profile_with_bodies(
                source.family,
                source.data,
                subset_size=options.subset_size,
                progress=options.progress,
            )
