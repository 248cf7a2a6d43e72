"""The main job, end to end (``quantize_and_compile``) and stage by stage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow import debug, frontend, interpreter, passes, profiling, quantization
from quantglow.control import AccuracyContract, quantized
from quantglow.delegating import Delegation, delegated_model, partly_compiled
from quantglow.errors import (
    CalibrationError,
    DelegationError,
    ModelError,
    OptionError,
    UnsupportedOpError,
)
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.job import Cut, Job, profile_in
from quantglow.models import (
    InputShapes,
    InputValues,
    family_of,
    float_only,
    is_quantized,
    programs_of,
    settled,
)
from quantglow.options import QuantizationConfig, choice
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization import accuracy_control
from quantglow.report import Diagnosis, MemoryFigures, Report, diagnosis
from quantglow.report.accuracy import WORST
from quantglow.report.report import report_of
from quantglow.runtime.build import Machine
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.delegated import DelegatedModel, PartlyCompiledModel
from quantglow.runtime.protocol import Backend
from quantglow.runtime.specialisations import Specialisation
from quantglow.types import Array


def quantize_and_compile(
    model: Any,
    calibration_data: Any,
    *,
    preset: str = "mixed",
    subset_size: int = 300,
    ignored_scope: Any = None,
    model_type: str | None = None,
    max_drop: float | None = None,
    drop_type: str = "absolute",
    validation_fn: Callable[..., float] | None = None,
    max_minutes: float | None = None,
    calibrate_method: Any = "auto",
    per_channel: bool = True,
    nodes_to_exclude: Iterable[str] | None = None,
    op_types_to_quantize: Iterable[str] | None = None,
    int16_activations: Any = (),
    target: str = "native",
    num_threads: int | None = None,
    verify: bool = True,
    progress: bool | str = "auto",
    seed: int = 0,
    input_shapes: InputShapes | None = None,
    measure_speed: bool = False,
) -> CompiledModel | PartlyCompiledModel:
    """Profile ``model`` on ``calibration_data``, quantize it to int8, compile it, check it.

    model             path, bytes or ``onnx.ModelProto``
    calibration_data  samples (dicts, arrays or tuples; ``subset_size`` are used at most), a
                      CalibrationDataReader, an ``.npz`` path, a ``Profile`` or its path
    max_drop, drop_type, validation_fn  accuracy that may be lost, see ``accuracy_contract``
    max_minutes       bounds each search (ranges and scales; steps out of int8)
    verify            compare with onnxruntime on calibration samples, for the report
    progress          progress bar on stderr; "auto": only on a terminal
    input_shapes      fixes the shapes that the model leaves free; without it, it serves them all
    measure_speed     keep float the layers that int8 makes slower, timed here: may differ by run
    target, num_threads  see ``compile``; the other options: see ``QuantizationConfig``

    Raises ``quantglow.errors``; ``model_type`` has no rules yet, so it is refused.  Where shapes
    are only known at run time, onnxruntime runs the rest (``PartlyCompiledModel``).
    """
    refuse_unavailable(model_type=model_type)
    contract = accuracy_contract(max_drop, drop_type, validation_fn, max_minutes)
    config = QuantizationConfig(
        preset=preset,
        calibrate_method=calibrate_method,
        per_channel=per_channel,
        ignored_scope=ignored_scope,
        nodes_to_exclude=nodes_to_exclude,
        op_types_to_quantize=op_types_to_quantize,
        seed=seed,
        int16_activations=int16_activations,
    )
    machine, job = Machine.of(target, num_threads), Job(model, verify=verify)
    cut = job.prepare(input_shapes, calibration_data)
    job.calibrate(subset_size, progress, seed)
    job.end_searches_after(max_minutes)
    chosen = job.without_slower(config, machine, progress) if measure_speed else config
    whole = whole_model(cut)
    return whole(quantized(job, chosen, contract, machine, whole, progress))


def quantized_under(
    contract: AccuracyContract | None,
    graph: Graph,
    samples: Sequence[Feeds],
    config: QuantizationConfig,
    machine: Machine,
) -> CompiledModel:
    """An optimized float graph quantized on all of the samples and compiled, not checked."""
    job = Job(graph, verify=False)
    job.prepare(None, samples)
    job.calibrate(len(samples), "auto", config.seed)
    job.end_searches_after(contract.max_minutes if contract else None)
    return quantized(job, config, contract, machine, whole_model(None), "auto")


def whole_model(cut: Cut | None) -> Callable[[CompiledModel], CompiledModel | PartlyCompiledModel]:
    """What makes the user's model of the part that is compiled."""
    if cut is None:
        return lambda compiled: compiled
    return lambda head: partly_compiled(cut.source, cut.parts, head, cut.error)


def refuse_unavailable(**options: object) -> None:
    """Raise ``OptionError`` for options that are part of the interface but do nothing yet."""
    if given := sorted(name for name, value in options.items() if value is not None):
        raise OptionError(f"{', '.join(given)}: not available yet. Remedy: leave it at its default")


def accuracy_contract(
    max_drop: float | None,
    drop_type: str,
    validation_fn: Callable[..., float] | None,
    max_minutes: float | None,
) -> AccuracyContract | None:
    """The contract the user asked for, None without ``max_drop``.

    max_drop       accuracy that may be lost
    drop_type      "absolute", or "relative" to the float model's figure
    validation_fn  a compiled model -> its figure, better when larger
    max_minutes    ends the search, as Ctrl-C does; the best model found until then is kept

    Until the contract holds, values become int16, then operators float, in the order of
    ``quantglow.quantization.ladder``.  Without ``validation_fn`` the figure is minus the relative
    error of the outputs on calibration samples, ``10 ** (-SQNR / 20)``: a drop of 0.1 is 20 dB.
    """
    choice("drop_type", drop_type, accuracy_control.DROP_TYPES)
    if max_drop is not None:
        return AccuracyContract(max_drop, drop_type, validation_fn, max_minutes)
    if max_minutes is not None and max_minutes <= 0:
        raise OptionError(f"max_minutes must be positive, got {max_minutes}")
    if validation_fn is not None:
        raise OptionError(
            "validation_fn belongs to max_drop. Remedy: pass max_drop, what may be lost."
        )
    return None


def import_model(
    model: Any,
    input_shapes: InputShapes | None = None,
    *,
    delegate: bool = True,
    input_values: InputValues | None = None,
) -> Graph:
    """The graph of an ONNX model (path, bytes or ModelProto), see ``frontend``.

    Float; of a model that comes quantized, the int8 graph, see ``quantization.qdq``.
    ``delegate``: operators that quantglow does not compile become ``External`` nodes, which
    onnxruntime computes; without it they are an ``UnsupportedOpError``.
    ``input_values``: elements of small integer inputs that decide shapes or branches; a graph is
    for one choice of them.  Where they are missed, that is an ``UndecidedError``.
    """
    graph = frontend.import_model(model, input_shapes, delegate=delegate, input_values=input_values)
    return quantization.fuse_quantized(graph) if is_quantized(graph) else graph


def profile(
    model: Any,
    calibration_data: Any,
    *,
    subset_size: int = 300,
    progress: bool | str = "auto",
    input_shapes: InputShapes | None = None,
) -> Profile:
    """Histograms of every tensor of a model or graph over calibration data.

    Of a model that leaves dimensions free, samples may have different shapes.  Of one whose shapes
    stop being known somewhere, what comes before is profiled.
    """
    job = Job(model, verify=False)
    job.prepare(input_shapes, calibration_data)
    return profiling.profile(job.family, job.given, subset_size=subset_size, progress=progress)


def quantize(
    graph: Graph,
    profile: Profile | str | os.PathLike[str],
    config: QuantizationConfig | None = None,
    data: Any = None,
) -> Graph:
    """The int8 graph of a float graph, with ranges from its profile.

    ``data``: calibration samples, for accuracy recovery.
    """
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    return quantization.quantize(float_graph_of(graph), known, config, data=data)


def interpret(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a graph by the reference interpreter, in the order of its outputs."""
    return interpreter.interpret(graph, {name: np.asarray(a) for name, a in feeds.items()})


def compile(
    model: Any,
    target: str = "native",
    num_threads: int | None = None,
    *,
    input_shapes: InputShapes | None = None,
    backend: str = "llvm",
    backends: Sequence[Backend] = (),
) -> CompiledModel | DelegatedModel:
    """Compile a graph (float or int8) or an ONNX model (float, or quantized already).

    onnxruntime computes the operators that quantglow does not know.  A model with shapes or types
    known only at run time it runs whole: that gives a ``DelegatedModel``, with the same methods.

    target        "native", or one of ``quantglow.backends.llvm.levels.LEVELS``
    num_threads   None: one for each physical core
    input_shapes  fixes the shapes of inputs that the model leaves free; without it the model
                  serves all of them, each compiled on first use
    backend       "llvm", or "reference": the same program in NumPy
    backends      code generators of your own, see ``Backend``; they are asked first, in order
    """
    machine = Machine.of(target, num_threads, backend, backends)
    if isinstance(model, Graph):
        return compile_family(family_of(model), machine)
    source = frontend.open_model(model)
    try:
        kept = settled(source, model)
        return compile_family(family_of(kept, input_shapes), machine, kept)
    except UnsupportedOpError as error:
        return compile_parts(source, input_shapes, machine, error)
    except DelegationError as error:
        return delegated_model(source, error, machine.num_threads)


def compile_parts(
    source: frontend.Source,
    input_shapes: InputShapes | None,
    machine: Machine,
    error: UnsupportedOpError,
) -> DelegatedModel:
    """Compile what comes before the nodes that ``error`` names; onnxruntime runs the rest, or all
    of it where nothing does.
    """
    with suppress(ModelError, DelegationError):
        if (parts := frontend.split(source, input_shapes)) is not None:
            head = frontend.Source(parts.head)
            compiled = compile_family(family_of(head, input_shapes), machine, head)
            return partly_compiled(source, parts, compiled, error)
    return delegated_model(source, error, machine.num_threads)


def compile_family(
    family: Family, machine: Machine, source: frontend.Source | None = None
) -> CompiledModel:
    """Compile for the shapes that are fixed, or with batch 1; where others are free, nothing yet.

    ``source``: the model, which onnxruntime runs at shapes for which it cannot be compiled.
    """
    seconds: dict[str, float] = {}
    with debug.timed("import", seconds):
        graph = family.default
    whole = Delegation(source, machine) if source else None
    if graph is None:
        report = Report(machine.name, machine.num_threads, MemoryFigures(), {}, notes=(ON_USE,))
        return CompiledModel(programs_of(family, None, machine, delegate=whole), report)
    build = machine.compile(graph)
    programs = programs_of(family, Specialisation(graph, build), machine, delegate=whole)
    report = replace(report_of(build, seconds), notes=quantization.float_notes(graph))
    return CompiledModel(programs, report)


def compiled_as_it_is(graph: Graph, machine: Machine) -> CompiledModel:
    """Compile a graph without optimizing it."""
    build = machine.compile(graph)
    return CompiledModel.of(graph, build, report_of(build, {}))


ON_USE = "the model leaves dimensions free: it is compiled for each shape on first use"


def diagnose(
    model: Any,
    calibration_data: Any,
    config: QuantizationConfig | None = None,
    *,
    subset_size: int = 300,
    samples: int = 2,
    sensitivity: bool = True,
    worst: int = WORST,
    progress: bool | str = "auto",
    input_shapes: InputShapes | None = None,
) -> Diagnosis:
    """Where the error of the int8 model or float graph comes from: every figure of every layer.

    samples       calibration batches to measure on
    sensitivity   also what each layer alone does to the outputs: a run of the rest for each
    worst         layers shown in detail

    The other arguments are those of ``quantize_and_compile``; nothing is compiled.
    """
    if samples < 1 or worst < 1:
        raise OptionError(f"samples and worst must be at least 1, got {samples} and {worst}")
    job = Job(model, verify=False)
    job.prepare(input_shapes, calibration_data)
    config = config or QuantizationConfig()
    job.calibrate(subset_size, progress, config.seed)
    if not job.kept:
        raise CalibrationError(
            "a profile holds no samples to measure on. Remedy: pass the calibration samples."
        )
    job.quantize(config)
    prepared = job.quantized.prepared
    graphs = (prepared.graph, job.quantized.graph, job.quantized.report)
    kept = job.kept[:samples]
    return diagnosis.diagnose(*graphs, kept, prepared.profile, sensitivity=sensitivity, shown=worst)


def float_graph_of(model: Any, input_shapes: InputShapes | None = None) -> Graph:
    """The optimized float graph of a model at one shape, or of a graph."""
    graph = model if isinstance(model, Graph) else import_model(model, input_shapes)
    return passes.optimize(float_only(graph))


def profile_of(graph: Graph, data: Any, subset_size: int = 300) -> Profile:
    """The profile that ``data`` is or names, or a new one over these samples."""
    return profile_in(data) or profile(graph, data, subset_size=subset_size)
