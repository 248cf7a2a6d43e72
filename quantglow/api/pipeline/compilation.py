"""Stage 5: the program, compared with the float model, and its latency (``measure_latency``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from quantglow.api.models.families import Built, Decided, results_of_loops
from quantglow.api.models.other_ways import OtherWays, WholeModel
from quantglow.api.models.programs import build_programs, load_first_kernels
from quantglow.api.pipeline.quantization import Prepared, QuantizedCases
from quantglow.evaluation import layers as verification
from quantglow.evaluation.accuracy import NOTHING_QUANTIZED, LayerAccuracy
from quantglow.evaluation.baselines.latency import latency_beside_float
from quantglow.evaluation.int8_share import FIRST_SAMPLE, PROFILE_SHAPES, Int8Share
from quantglow.evaluation.layers import Verification, no_labels, until_interrupted
from quantglow.evaluation.macs import count_by_run, count_by_types
from quantglow.evaluation.outputs import Reference, reference
from quantglow.evaluation.report import PageSource, Report, build_report
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.importer.onnx import Source
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import declared_only, leaving
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.decisions import Decisions
from quantglow.report.page import build_page_source
from quantglow.runtime.compiled import CompiledModel, Reporter
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.hybrid.loop_driver import LoopBodies, describe_bodies
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import FallbackOnUse, ModelPrograms
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.processes import interrupts

Model = TypeVar("Model", CompiledModel, CompiledModel | FallbackModel)

NO_RIGHT_ANSWERS = (
    "the labels of validation_data were not used: no output has one row of scores for each, of the "
    "same shape in float and int8"
)

NO_SAMPLES = "the latency was not measured: there are no samples"
NO_MODEL = "the latency was not measured: a graph is no ONNX model"


def compile_quantized(quantized: QuantizedCases, compiler: Compiler) -> CompiledModel:
    """The quantized model as a program, checked if the request asks for it."""
    calibrated, candidate = quantized.calibrated, quantized.main
    verify = quantized.prepared.request.verify
    checked = list(until_interrupted(calibrated.checks.feeds if verify else ()))
    with reference(calibrated.imported.model, candidate.candidate.graph, checked) as expected:
        programs = compile_cases(quantized, compiler)
        build = programs.first.build
        seconds = {**calibrated.seconds, **build.seconds}
        with debug.time_stage("verify", seconds):
            result = _verification(quantized, programs, expected, checked)
    profile = calibrated.profile
    checked_report = _report_checks(build, seconds, result)
    report = replace(
        checked_report,
        layers=_layers_outside(checked_report.layers, quantized),
        notes=(
            *calibrated.checks.notes,
            *result.notes,
            *quantized.notes,
            *describe_bodies(quantized.prepared.bodies),
            *interrupts.notes(),
        ),
        warnings=calibrated.warnings,
        origin=calibrated.checks.origin if result.samples else "",
        profile={"samples": profile.samples, "tensors": len(profile.histograms)},
        speeds=quantized.prepared.speeds,
        weights=WeightSizes.of(calibrated.float_graph, candidate.graph),
        source=page_source(quantized),
    )

    def now() -> Report:  # a loop that has run tells what it leaves to onnxruntime
        return replace(report, fallback=build.fallback)

    bodies = quantized.prepared.bodies.items()
    trips = {n: b.profile for n, b in bodies if not isinstance(b, str) and b.profile is not None}
    profile = replace(profile, bodies={**profile.bodies, **trips})
    return CompiledModel(programs, now, profile)


def _layers_outside(
    layers: Sequence[LayerAccuracy], quantized: QuantizedCases
) -> tuple[LayerAccuracy, ...]:
    """The layers without loops whose bodies are int8 models of their own."""
    bodies = quantized.prepared.bodies.items()
    loops = {name for name, body in bodies if not isinstance(body, str)}
    inside = {node.name for node in results_of_loops(quantized.main.graph, loops)}
    return tuple(layer for layer in layers if layer.name not in inside)


def page_source(quantized: QuantizedCases, trace: Mapping[str, Any] | None = None) -> PageSource:
    """Name, histograms and options of a quantized model, for its page."""
    prepared = quantized.prepared
    histograms = prepared.candidate.profile.histograms
    return build_page_source(
        quantized.calibrated.imported.model, histograms, prepared.config, trace
    )


def compile_cases(quantized: QuantizedCases, compiler: Compiler) -> ModelPrograms:
    """The programs of a quantized model, the first of which is compiled."""
    calibrated = quantized.calibrated
    built = Built(calibrated.family, quantized.decisions, quantized.prepared.bodies)
    source = calibrated.family.source
    exact = WholeModel(source, compiler.num_threads).at if isinstance(source, Source) else None
    tried = calibrated.family.late_results

    def other_ways(compiler: Compiler) -> OtherWays:
        return OtherWays(built.source, compiler, tried)

    whole = FallbackOnUse(other_ways, compiler, exact)
    return build_programs(built, compiler, whole, quantized.main.graph, calibrated.case)


def load_kernels(
    prepared: Prepared,
    compiler: Compiler,
    graph: Graph,
    decisions: Decisions,
    check: Callable[[], object],
) -> None:
    """Compile the kernels of ``compile_cases`` for a graph whose weights are not rounded yet."""
    calibrated = prepared.calibrated
    case = calibrated.case
    built = Built(calibrated.family, {case.values: Decided(decisions, graph, case.late)})
    load_first_kernels(built, compiler, graph, case, check)


def _verification(
    quantized: QuantizedCases,
    programs: ModelPrograms,
    expected: Reference,
    checked: Sequence[Feeds],
) -> Verification:
    main, calibrated = quantized.main, quantized.calibrated
    precisions, candidate = main.report, main.candidate
    is_float = all(node.type.quant is None for node in main.graph.every_node())
    notes = (*calibrated.family.notes, *((NOTHING_QUANTIZED,) if is_float else ()))
    if not quantized.prepared.request.verify:
        return verification.skip_verification(precisions, *notes)
    ends = main.graph.signature.outputs

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        return leaving(ends, programs.at(feeds).build.executable.run(feeds))

    graphs = (candidate.graph, main.graph, precisions)
    validation = calibrated.checks.validation
    right = validation.right if validation else no_labels
    samples = checked, calibrated.checks.of_case
    result = verification.verify(expected, *graphs, run, *samples, candidate.profile, right)
    if validation and validation.labels and result.samples and result.right is None:
        notes = (*notes, NO_RIGHT_ANSWERS)
    return replace(result, notes=(*result.notes, *notes))


def compile_float(
    family: Family, graph: Graph, compiler: Compiler, bodies: LoopBodies | None = None
) -> CompiledModel:
    """A float model, compiled for the shapes of ``graph`` at once; ``bodies`` of loops are int8."""
    programs = build_programs(Built(family, None, bodies or {}), compiler, graph=graph)
    return CompiledModel(programs, lambda: build_report(programs.first.build, {}))


def _report_checks(
    build: Build, seconds: Mapping[str, float], verification: Verification
) -> Report:
    """The report of a build that was compared with the float model."""
    return replace(
        build_report(build, seconds),
        outputs=verification.outputs,
        layers=verification.layers,
        compared_with=verification.compared_with,
        samples=verification.samples,
        right=verification.right,
        notes=verification.notes,
    )


def with_latency(compiled: Model, model: Any, samples: Sequence[Mapping[str, Array]]) -> Model:
    """The model whose report has the latency of the first sample, or a note why not.

    ``model`` is the ONNX model that it was made of: path, bytes or ModelProto.
    """
    if not samples or isinstance(model, Graph):
        note = NO_MODEL if samples else NO_SAMPLES
        return _reporting(compiled, notes=(note,))
    assert isinstance(compiled, CompiledModel)
    feeds = declared_only(compiled.specialisations.signature.inputs, samples[0])
    threads = compiled.num_threads
    try:
        latencies = latency_beside_float(
            lambda arrays: compiled.run(None, arrays), feeds, model, threads
        )
    except Exception as error:  # noqa: BLE001 - no figure costs the model that it is about
        return _reporting(compiled, notes=(f"the latency was not measured: {error}",))
    return _reporting(compiled, latency=latencies)


def with_int8_share(
    compiled: CompiledModel, samples: Sequence[Mapping[str, Array]], may_run: bool
) -> CompiledModel:
    """The model whose report has the share of int8 in all multiply-accumulates.

    It takes a run of the first sample where types of a graph do not tell; without one, or if it is
    not to run, such a model has no such figure.
    """
    try:
        share = _int8_share(compiled, samples, may_run)
    except Exception as error:  # noqa: BLE001 - no figure costs the model that it is about
        note = f"the multiply-accumulates were not counted: {type(error).__name__}: {error}"
        return _reporting(compiled, notes=(note,))
    return compiled if share is None else _reporting(compiled, int8_share=share)


def _int8_share(
    compiled: CompiledModel, samples: Sequence[Mapping[str, Array]], may_run: bool
) -> Int8Share | None:
    basis = FIRST_SAMPLE if samples else PROFILE_SHAPES
    programs = compiled.specialisations
    first = programs.first
    if (share := count_by_types(first.graph, basis)) is not None:
        return share
    if samples and may_run:
        return count_by_run(lambda: first.run(samples[0]))
    if isinstance(programs, FreeShapes) and programs.opened.graph.outputs:
        return count_by_types(programs.opened.graph, basis)  # that of a main sample
    return None


def _reporting(compiled: Model, notes: tuple[str, ...] = (), **facts: Any) -> Model:
    """The model whose report has more facts and notes."""
    before: Reporter = compiled.reporter

    def report() -> Report:
        earlier: Report = before()
        return replace(earlier, notes=(*earlier.notes, *notes), **facts)

    return replace(compiled, reporter=report)
