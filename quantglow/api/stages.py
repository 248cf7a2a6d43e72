"""The stages of the compiler, one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from quantglow import interpreter, profiling
from quantglow.api.models.families import (
    InputValues,
    float_graph,
    is_quantized,
    with_steps,
)
from quantglow.api.options import InputShapes, Progress
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.compilation import page_source
from quantglow.api.pipeline.distributed_profiling import check_for_model, profile_on
from quantglow.api.pipeline.distributed_rounding import ClusterRuns
from quantglow.api.pipeline.groupwise import graph_with_packed_weights
from quantglow.api.pipeline.quantization import (
    QuantizedCases,
    prepare_quantization,
    quantize_cases,
    time_layers,
)
from quantglow.api.pipeline.request import QuantizationRequest, computing, import_request
from quantglow.api.pipeline.samples import profile_in
from quantglow.evaluation import diagnosis
from quantglow.evaluation.accuracy import WORST
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.importer import as_onnx, model_as_onnx
from quantglow.importer import onnx as importer
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import entering, leaving
from quantglow.profiling import Profile
from quantglow.quantization import quantizer
from quantglow.quantization.options import (
    COMPILED,
    PROFILES_WITH,
    ProfileWith,
    QuantizationConfig,
)
from quantglow.quantization.qdq import fuse_quantized
from quantglow.quantization.rounding.layerwise import Begin
from quantglow.quantization.rounding.sample_runs import SampleRuns
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds
from quantglow.support.arguments import (
    brief,
    choice,
    count,
    elements,
    flag,
    instance,
    options_named,
    progress_mode,
    shapes,
)
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError, CalibrationError, OptionError
from quantglow.support.extras import require_client
from quantglow.support.processes.interrupts import keeping_best


@options_named()
def import_model(
    model: Any,
    input_shapes: InputShapes | None = None,
    *,
    fallback: bool = True,
    input_values: InputValues | None = None,
    samples: Any = None,
    before: Any = None,
    after: Any = None,
) -> Graph:
    """The graph of an ONNX model (path, bytes or ModelProto), see ``importer.onnx``.

    Float; of a model that comes quantized, the int8 graph, see ``quantization.qdq``.
    ``fallback``: operators that quantglow does not compile become ``External`` nodes, which
    onnxruntime computes; without it they are an ``UnsupportedOpError``.
    ``input_values``: elements of small integer inputs that decide shapes or branches; a graph is
    for one choice of them.  Where they are missed, that is an ``UndecidedError``.
    ``samples``: those on whose first one a ``torch.nn.Module`` is exported.
    ``before``, ``after``: steps that become part of the graph, see ``compile``.
    """
    graph = importer.import_model(
        with_steps(model_as_onnx(model, samples), before, after),
        shapes("input_shapes", input_shapes),
        fallback=flag("fallback", fallback),
        input_values=elements("input_values", input_values),
    )
    return fuse_quantized(graph) if is_quantized(graph) else graph


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


@options_named()
def quantize(
    graph: Graph,
    profile: Profile | str | os.PathLike[str] | None,
    config: QuantizationConfig | None = None,
    data: Any = None,
    client: Any = None,
) -> Graph:
    """The int8 graph of a float graph, with ranges from its profile.

    ``data``: calibration samples, for accuracy recovery.  Weights in groups
    (``QuantizationConfig.weights``) need no profile.

    ``client``: a ``dask.distributed.Client``, whose workers run the samples of accuracy recovery,
    eight in a shard; ranges and scales are chosen in this process.  The graph is the same for any
    number of workers and whichever die, where they are of one kind.  Raises ``BackendError`` where
    the workers are not, or give no result.
    """
    graph, data = as_onnx(graph, data)
    chosen = _resolve_config(config)
    workers = None if client is None else require_client(client)
    if workers is not None and (data is None or chosen.weights is not None or not chosen.recovery):
        raise OptionError(
            "client runs the samples of accuracy recovery, and there is none without data, without "
            "techniques (recovery), or with weights in groups. Remedy: pass data, or leave client "
            "out."
        )
    if chosen.weights is not None:
        with keeping_best():
            return graph_with_packed_weights(open_float_graph(graph), data, chosen)
    if not isinstance(profile, Profile | str | os.PathLike):
        raise OptionError(
            f"profile must be a Profile or the path of one, got {brief(profile)}. "
            "Remedy: record one with quantglow.profile"
        )
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    begin: Begin = SampleRuns
    if workers is not None:
        begin = partial(ClusterRuns, workers, chosen.profile_with)
    with keeping_best(), computing(chosen.profile_with):
        return quantizer.quantize(open_float_graph(graph), known, chosen, data=data, begin=begin)


@options_named()
def interpret(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a graph by the reference interpreter, in the order of its outputs.

    Arrays have the types that the model declares, as in ``CompiledModel.run``.
    """
    instance("graph", graph, Graph, "a Graph, as import_model gives it")
    ends = graph.signature
    input_feeds = check_feeds(feeds, lambda: map(TensorInfo.of, ends.inputs))
    return leaving(ends.outputs, interpreter.interpret(graph, entering(ends.inputs, input_feeds)))


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
    config = _resolve_config(config)
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


def _resolve_config(config: QuantizationConfig | None) -> QuantizationConfig:
    """The options, or those that are the default.  Raises ``OptionError``."""
    if config is None:
        return QuantizationConfig()
    checked: QuantizationConfig = instance(
        "config", config, QuantizationConfig, "a QuantizationConfig"
    )
    return checked


def open_float_graph(model: Any) -> Graph:
    """The optimized float graph of a model, or of a graph; a model's stored weights stay."""
    is_graph = isinstance(model, Graph)
    graph = model if is_graph else importer.import_model(model_as_onnx(model, None), fallback=True)
    return float_graph(graph)
