"""``profile``: the ranges of all tensors over calibration data."""

from __future__ import annotations

from typing import Any

from quantglow import profiling
from quantglow.api.models.families import (
    with_steps,
)
from quantglow.api.options import InputShapes, Progress
from quantglow.api.pipeline.distributed_profiling import check_for_model, profile_on
from quantglow.api.pipeline.request import computing, import_request
from quantglow.api.pipeline.samples import profile_in
from quantglow.importer import as_onnx
from quantglow.profiling import Profile
from quantglow.quantization.options import (
    COMPILED,
    PROFILES_WITH,
    ProfileWith,
)
from quantglow.support.arguments import (
    choice,
    count,
    options_named,
    progress_mode,
    shapes,
)
from quantglow.support.errors import CalibrationError
from quantglow.support.processes.interrupts import keeping_best


@options_named()
def profile(
    model: Any,
    calibration_data: Any,
    *,
    subset_size: int = 300,
    progress: Progress = "auto",
    input_shapes: InputShapes | None = None,
    client: Any = None,
    before: Any = None,
    after: Any = None,
    profile_with: ProfileWith = COMPILED,
) -> Profile:
    """Histograms of every tensor of a model or graph over calibration data.

    Samples of a model that leaves dimensions free may have different shapes.  A model whose shapes
    stop being known somewhere is profiled up to there.

    ``client``: a ``dask.distributed.Client``, whose workers run the model on the samples.  The
    profile equals that of one process bit for bit, however samples are spread and whichever
    workers die, where the processors and their linear algebra are of one kind.  Raises
    ``BackendError`` where the workers are not, or give no result.

    ``before``, ``after``: steps that become part of the model, see ``compile``.

    ``profile_with``: "compiled" computes layers by machine code, "interpreter" in NumPy; the values
    are equal up to the rounding of float sums.
    """
    choice("profile_with", profile_with, PROFILES_WITH)
    subset_size = count("subset_size", subset_size)
    progress = progress_mode("progress", progress)
    if profile_in(calibration_data) is not None:
        raise CalibrationError(
            "the calibration data is a profile already. Remedy: pass samples to record another one."
        )
    model, calibration_data = as_onnx(model, calibration_data)
    model = with_steps(model, before, after)
    fixed_shapes = shapes("input_shapes", input_shapes)
    workers = None if client is None else check_for_model(client, model)
    source = import_request(model, calibration_data, fixed_shapes)
    with keeping_best():
        if workers is not None:
            return profile_on(
                workers, source, fixed_shapes or {}, subset_size, progress, profile_with
            )
        with computing(profile_with):
            return profiling.profile(
                source.family, source.data, subset_size=subset_size, progress=progress
            )
