"""The main job, end to end (``quantize_and_compile``) and stage by stage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantglow import debug, frontend, interpreter, passes, profiling, quantization
from quantglow.delegating import Delegation, delegated_model
from quantglow.errors import CalibrationError, DelegationError, OptionError, UnsupportedOpError
from quantglow.graph.graph import Graph
from quantglow.options import QuantizationConfig, choice
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, feeds_of
from quantglow.profiling.storage import is_profile
from quantglow.quantization import accuracy_control
from quantglow.quantization.recovery import Spread, capacity
from quantglow.report import Diagnosis, MemoryFigures, Report, diagnosis, verification
from quantglow.report.accuracy import WORST
from quantglow.report.metrics import Sums
from quantglow.report.report import report_of
from quantglow.report.sensitivity import sensitivities
from quantglow.report.verification import MAX_SAMPLES, Verification
from quantglow.runtime.build import Build, Machine, compile_graph, thread_count
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.delegated import DelegatedModel
from quantglow.runtime.protocol import Backend
from quantglow.runtime.specialisations import FreeShapes, Specialisation
from quantglow.types import Array

Shapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for models that leave dimensions free."""


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
    input_shapes: Shapes | None = None,
) -> CompiledModel:
    """Profile ``model`` on ``calibration_data``, quantize it to int8, compile it, check it.

    model                 path, bytes or ``onnx.ModelProto``
    calibration_data      iterable of samples (dict, array or tuple), onnxruntime
                          CalibrationDataReader, path of an ``.npz`` file, ``Profile`` or its path
    preset, ignored_scope, calibrate_method, per_channel, nodes_to_exclude, op_types_to_quantize,
    int16_activations     see ``QuantizationConfig``
    subset_size           calibration batches to use at most
    target, num_threads   see ``compile``
    verify                compare with onnxruntime on calibration samples, for the report
    progress              progress bar on stderr; "auto": only on a terminal
    seed                  of everything drawn at random; nothing is, so far
    input_shapes          shapes of inputs that the model leaves free

    max_drop              accuracy that may be lost, see ``accuracy_contract``
    drop_type             "absolute", or "relative" to the float model's figure
    validation_fn         a compiled model -> its figure, better when larger
    max_minutes           bound on the search for layers that must stay float

    ``model_type`` is refused until there are rules for it.  Raises the errors of
    ``quantglow.errors``, ``AccuracyDropError`` among them.
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
        int16_activations=int16_activations,
    )
    thread_count(num_threads)
    job = _Job(model, verify=verify)
    job.prepare(input_shapes)
    job.calibrate(calibration_data, subset_size, progress)
    if contract is not None:
        return job.compile_controlled(config, contract, target, num_threads)
    job.quantize(config, progress)
    return job.compile(target, num_threads)


def refuse_unavailable(**options: object) -> None:
    """Raise ``OptionError`` for options that are part of the interface but do nothing yet."""
    if given := sorted(name for name, value in options.items() if value is not None):
        raise OptionError(f"{', '.join(given)}: not available yet. Remedy: leave it at its default")


@dataclass(frozen=True)
class AccuracyContract:
    """``max_drop`` and its companions, before there is a model to measure."""

    max_drop: float
    drop_type: str
    validation_fn: Callable[..., float] | None
    max_minutes: float | None


def accuracy_contract(
    max_drop: float | None,
    drop_type: str,
    validation_fn: Callable[..., float] | None,
    max_minutes: float | None,
) -> AccuracyContract | None:
    """The contract the user asked for, None without ``max_drop``.

    Without ``validation_fn`` the figure is minus the relative error of the outputs on calibration
    samples, ``10 ** (-SQNR / 20)``: a drop of 0.1 is 20 dB.
    """
    choice("drop_type", drop_type, accuracy_control.DROP_TYPES)
    if max_drop is not None:
        return AccuracyContract(max_drop, drop_type, validation_fn, max_minutes)
    if validation_fn is not None or max_minutes is not None:
        raise OptionError(
            "validation_fn and max_minutes belong to max_drop. Remedy: pass max_drop, the accuracy "
            "that may be lost."
        )
    return None


def import_model(model: Any, input_shapes: Shapes | None = None, *, delegate: bool = True) -> Graph:
    """The graph of an ONNX model (path, bytes or ModelProto), see ``frontend``.

    Float; of a model that comes quantized, the int8 graph, see ``quantization.qdq``.
    ``delegate``: operators that quantglow does not compile become ``External`` nodes, which
    onnxruntime computes; without it they are an ``UnsupportedOpError``.
    """
    graph = frontend.import_model(model, input_shapes, delegate=delegate)
    return quantization.fuse_quantized(graph) if is_quantized(graph) else graph


def profile(
    model: Any,
    calibration_data: Any,
    *,
    subset_size: int = 300,
    progress: bool | str = "auto",
    input_shapes: Shapes | None = None,
) -> Profile:
    """Histograms of every tensor of a model or graph over calibration data."""
    graph = float_graph_of(model, input_shapes)
    return profiling.profile(graph, calibration_data, subset_size=subset_size, progress=progress)


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
    input_shapes: Shapes | None = None,
    backend: str = "llvm",
    backends: Sequence[Backend] = (),
) -> CompiledModel | DelegatedModel:
    """Compile a graph (float or int8) or an ONNX model (float, or quantized already).

    onnxruntime computes the operators that quantglow does not know.  A model with shapes or types
    known only at run time it runs whole: that gives a ``DelegatedModel``, with the same methods.

    target        "native", or one of ``quantglow.backends.llvm.target.LEVELS``
    num_threads   None: one for each physical core
    input_shapes  fixes the shapes of inputs that the model leaves free; without it the model
                  serves all of them, each compiled on first use
    backend       "llvm", or "reference": the same program in NumPy
    backends      code generators of your own, see ``Backend``; they are asked first, in order
    """
    machine = Machine.of(target, num_threads, backend, backends)
    if isinstance(model, Graph):
        return compiled_as_it_is(ready(model, fused=True), machine)
    source = frontend.open_model(model)
    try:
        return compile_source(source, input_shapes, machine)
    except (UnsupportedOpError, DelegationError) as error:
        return delegated_model(source, error, machine.num_threads)


def compile_source(
    source: frontend.Source, input_shapes: Shapes | None, machine: Machine
) -> CompiledModel:
    """Compile a model for the shapes it has or is given, or else for all it may have."""
    if not input_shapes and source.signature.is_free:
        return compile_free(source.snapshot(), machine)
    seconds: dict[str, float] = {}
    with debug.timed("import", seconds):
        graph = ready(source.graph(input_shapes, delegate=True))
    return compiled_as_it_is(graph, machine, seconds)


def compiled_as_it_is(
    graph: Graph, machine: Machine, seconds: Mapping[str, float] | None = None
) -> CompiledModel:
    """Compile a graph without optimizing it."""
    build = machine.compile(graph)
    return CompiledModel.of(graph, build, report_of(build, seconds or {}))


def compile_free(source: frontend.Source, machine: Machine) -> CompiledModel:
    """A model that serves every shape; one that leaves only its batch free is compiled for
    batch 1 at once.
    """

    def graph_at(shapes: Shapes | None) -> Graph:
        return ready(source.graph(shapes, delegate=True))

    whole = Delegation(source, machine.num_threads)
    programs = FreeShapes(source.signature, graph_at, machine, whole)
    if not source.has_shapes:
        report = Report(machine.name, machine.num_threads, MemoryFigures(), {}, notes=(ON_USE,))
        return CompiledModel(programs, report)
    seconds: dict[str, float] = {}
    with debug.timed("import", seconds):
        graph = graph_at(None)
    build = machine.compile(graph)
    programs.add(Specialisation(graph, build))
    return CompiledModel(programs, report_of(build, seconds))


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
    input_shapes: Shapes | None = None,
) -> Diagnosis:
    """Where the error of the int8 model or float graph comes from: every figure of every layer.

    samples       calibration batches to measure on
    sensitivity   also what each layer alone does to the outputs: a run of the rest for each
    worst         layers shown in detail

    The other arguments are those of ``quantize_and_compile``; nothing is compiled.
    """
    if samples < 1 or worst < 1:
        raise OptionError(f"samples and worst must be at least 1, got {samples} and {worst}")
    job = _Job(model, verify=False)
    job.float_graph = float_graph_of(model, input_shapes)
    job.calibrate(calibration_data, subset_size, progress)
    if not job.kept:
        raise CalibrationError(
            "a profile holds no samples to measure on. Remedy: pass the calibration samples."
        )
    job.quantize(config or QuantizationConfig())
    graphs = (job.float_graph, job.graph, job.decisions)
    kept = job.kept[:samples]
    return diagnosis.diagnose(*graphs, kept, job.profile, sensitivity=sensitivity, shown=worst)


def float_graph_of(model: Any, input_shapes: Shapes | None = None) -> Graph:
    """The optimized float graph of a model or of a graph."""
    graph = model if isinstance(model, Graph) else import_model(model, input_shapes)
    if is_quantized(graph):
        raise OptionError(
            "the model is quantized already. Remedy: compile it as it is, or pass the float model."
        )
    return passes.optimize(graph)


def ready(graph: Graph, *, fused: bool = False) -> Graph:
    """An imported graph as it is compiled: optimized, int8 where the model comes quantized.

    ``fused``: a quantized graph is that already.
    """
    if not is_quantized(graph):
        return passes.optimize(graph)
    return graph if fused else quantization.fuse_quantized(graph)


def is_quantized(graph: Graph) -> bool:
    """Whether any value is an integer standing for a real number."""
    return any(node.type.quant is not None for node in graph.nodes)


def checked_report(build: Build, seconds: Mapping[str, float], found: Verification) -> Report:
    """The report of a build that was compared with the float model."""
    return replace(
        report_of(build, seconds),
        outputs=found.outputs,
        layers=found.layers,
        compared_with=found.compared_with,
        samples=found.samples,
        notes=found.notes,
    )


@dataclass
class _Job:
    """The stages of ``quantize_and_compile`` with what they hand to each other."""

    model: Any
    verify: bool
    seconds: dict[str, float] = field(default_factory=dict)
    kept: list[Feeds] = field(default_factory=list)
    spread: Spread[Feeds] | None = None

    def prepare(self, input_shapes: Shapes | None) -> None:
        with debug.timed("import", self.seconds):
            imported = import_model(self.model, input_shapes)
        with debug.timed("optimize", self.seconds):
            self.float_graph = float_graph_of(imported)

    def calibrate(self, data: Any, subset_size: int, progress: bool | str) -> None:
        with debug.timed("profile", self.seconds):
            known = profile_in(data)
            if known is None:
                self.spread = Spread(capacity(self.float_graph))
                samples = _Samples(data, self.float_graph, self.kept, self.spread)
                known = profiling.profile(
                    self.float_graph, samples, subset_size=subset_size, progress=progress
                )
        self.profile = known

    def quantize(self, config: QuantizationConfig, progress: bool | str = "auto") -> None:
        """Quantize, with accuracy recovery if there are samples and not only a profile."""
        data = self.spread.kept if self.spread else None
        with debug.timed("quantize", self.seconds):
            self.graph, self.decisions = quantization.quantize_with_report(
                self.float_graph, self.profile, config, data=data, progress=progress
            )

    def compile(self, target: str, num_threads: int | None) -> CompiledModel:
        build = compile_graph(self.graph, target, num_threads)
        seconds = {**self.seconds, **build.seconds}
        with debug.timed("verify", seconds):
            found = self._verification(build)
        report = replace(
            checked_report(build, seconds, found),
            profile={"samples": self.profile.samples, "tensors": len(self.profile.histograms)},
        )
        return CompiledModel.of(self.graph, build, report, self.profile)

    def compile_controlled(
        self,
        config: QuantizationConfig,
        contract: AccuracyContract,
        target: str,
        num_threads: int | None,
    ) -> CompiledModel:
        """The fastest model found that satisfies the contract, checked as ``compile`` does."""
        machine = Machine.of(target, num_threads)
        measured = accuracy_control.Contract[CompiledModel](
            contract.max_drop,
            contract.validation_fn or self.minus_relative_error,
            contract.drop_type,
            contract.max_minutes,
        )

        def build(kept_float: Sequence[str]) -> CompiledModel:
            self.quantize(excluding(config, kept_float))
            return compiled_as_it_is(self.graph, machine)

        float_model = compiled_as_it_is(self.float_graph, machine)
        self.quantize(config)
        ranking = self.ranking()
        baseline = measured.metric(float_model)
        found = accuracy_control.Search(measured, baseline, ranking, build).run()
        self.quantize(excluding(config, ranking[: found.kept]))
        return self.compile(target, num_threads)

    def ranking(self) -> list[str]:
        """Layers in int8, the one whose error alone harms the outputs most first."""
        if not self.kept:
            raise CalibrationError(
                "a profile holds no samples to rank layers on. Remedy: pass the calibration "
                "samples together with max_drop."
            )
        names = [n.name for n in self.decisions.nodes if n.precision != "float"]
        found = sensitivities(self.float_graph, self.graph, names, self.kept[:RANKING_SAMPLES])
        return sorted(found, key=lambda name: found[name])

    def minus_relative_error(self, model: CompiledModel) -> float:
        """``-10 ** (-SQNR / 20)`` of the worst output on the kept calibration samples."""
        totals = [Sums()] * len(self.float_graph.outputs)
        for feeds in self.kept:
            wanted = interpreter.interpret(self.float_graph, feeds)
            pairs = zip(totals, wanted, model.run(None, feeds), strict=True)
            totals = [t + Sums.of(w, g) for t, w, g in pairs]
        return -max(10 ** (-t.sqnr_db / 20) for t in totals)

    def _verification(self, build: Build) -> Verification:
        floats = self.decisions.count("float")
        nothing = () if floats < len(self.decisions.nodes) else (NOTHING_QUANTIZED,)
        if not self.verify:
            return verification.unverified(self.decisions, *nothing)
        run = build.executable.run
        graphs = (self.float_graph, self.graph, self.decisions)
        found = verification.verify(self.model, *graphs, run, self.kept, self.profile)
        return replace(found, notes=(*found.notes, *nothing))


RANKING_SAMPLES = 2
"""Calibration batches on which accuracy control ranks layers; each costs a run per layer."""

NOTHING_QUANTIZED = "no operator became int8; the reasons are in the table of layers"


def excluding(config: QuantizationConfig, names: Sequence[str]) -> QuantizationConfig:
    """The same options with more nodes in float."""
    exact = tuple(f"re:^{re.escape(name)}$" for name in names)
    return replace(config, nodes_to_exclude=(*(config.nodes_to_exclude or ()), *exact))


def profile_of(graph: Graph, data: Any, subset_size: int = 300) -> Profile:
    """The profile that ``data`` is or names, or a new one over these samples."""
    return profile_in(data) or profile(graph, data, subset_size=subset_size)


def profile_in(data: Any) -> Profile | None:
    """The profile that calibration data is, or names; None for samples."""
    if isinstance(data, Profile):
        return data
    if isinstance(data, str | os.PathLike) and is_profile(data):
        return Profile.load(data)
    return None


@dataclass
class _Samples:
    """Calibration data as feeds; some are kept for accuracy recovery, the first for the check."""

    data: Any
    graph: Graph
    kept: list[Feeds]
    spread: Spread[Feeds]

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in feeds_of(self.data, self.graph.inputs):
            if len(self.kept) < MAX_SAMPLES:
                self.kept.append(feeds)
            # The caller may fill the same array again for the next sample.
            self.spread.add({name: array.copy() for name, array in feeds.items()})
            yield feeds
