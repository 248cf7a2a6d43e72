"""Stage 5: the program, compared with the float model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantglow import debug
from quantglow.driver.origins import Built, programs_of
from quantglow.driver.parts import ModelFallback, WholeModel
from quantglow.driver.pipeline.quantized import Quantized
from quantglow.foreign_types import Array
from quantglow.frontend import Source
from quantglow.graph.border import leaving
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.processes import interrupts
from quantglow.profiling.data import Feeds
from quantglow.report import Report
from quantglow.report.accuracy import verification
from quantglow.report.accuracy.headline import NOTHING_QUANTIZED
from quantglow.report.accuracy.outputs import Reference, reference
from quantglow.report.accuracy.verification import Verification, no_labels, until_interrupted
from quantglow.report.memory.sizes import WeightSizes
from quantglow.report.page.source import PageSource
from quantglow.report.report import report_of
from quantglow.runtime.build import Build, Compiler
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.shapes.fallbacks import FallbackOnUse
from quantglow.runtime.shapes.specialisations import Specialisation


def compiled(quantized: Quantized, compiler: Compiler) -> CompiledModel:
    """The quantized model as a program, checked if the request asks for it."""
    calibrated, found = quantized.calibrated, quantized.main
    verify = quantized.prepared.request.verify
    checked = list(until_interrupted(calibrated.checks.feeds if verify else ()))
    with reference(calibrated.imported.model, found.candidate.graph, checked) as wanted:
        build = compiler.compile(found.graph)
        seconds = {**calibrated.seconds, **build.seconds}
        with debug.timed("verify", seconds):
            result = _verification(quantized, build, wanted, checked)
    profile = calibrated.profile
    report = replace(
        checked_report(build, seconds, result),
        notes=(*calibrated.checks.notes, *result.notes, *quantized.notes, *interrupts.notes()),
        warnings=calibrated.warnings,
        origin=calibrated.checks.origin if result.samples else "",
        profile={"samples": profile.samples, "tensors": len(profile.histograms)},
        speeds=quantized.prepared.speeds,
        weights=WeightSizes.of(calibrated.float_graph, found.graph),
        source=page_source(quantized),
    )
    return model_of(quantized, build, compiler, report)


def page_source(quantized: Quantized, trace: Mapping[str, Any] | None = None) -> PageSource:
    """Name, histograms and options of a quantized model, for its page."""
    prepared = quantized.prepared
    histograms = prepared.candidate.profile.histograms
    return PageSource.of(quantized.calibrated.imported.model, histograms, prepared.config, trace)


def model_of(
    quantized: Quantized, build: Build, compiler: Compiler, report: Report
) -> CompiledModel:
    """The compiled model of a build of the quantized graph."""
    calibrated = quantized.calibrated
    first = Specialisation(quantized.main.graph, build, calibrated.case)
    built = Built(calibrated.family, quantized.decisions)
    source = calibrated.family.source
    exact = WholeModel(source, compiler.num_threads).at if isinstance(source, Source) else None
    whole = FallbackOnUse(lambda: ModelFallback(built.source, compiler), exact)
    programs = programs_of(built, first, compiler, whole)
    return CompiledModel(programs, lambda: report, calibrated.profile)


def _verification(
    quantized: Quantized, build: Build, wanted: Reference, checked: Sequence[Feeds]
) -> Verification:
    found, calibrated = quantized.main, quantized.calibrated
    precisions, candidate = found.report, found.candidate
    is_float = all(node.type.quant is None for node in found.graph.every_node())
    notes = (*calibrated.family.notes, *((NOTHING_QUANTIZED,) if is_float else ()))
    if not quantized.prepared.request.verify:
        return verification.unverified(precisions, *notes)
    ends = found.graph.signature.outputs

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        return leaving(ends, build.executable.run(feeds))

    graphs = (candidate.graph, found.graph, precisions)
    validation = calibrated.checks.validation
    right = validation.right if validation else no_labels
    result = verification.verify(wanted, *graphs, run, checked, candidate.profile, right)
    return replace(result, notes=(*result.notes, *notes))


def compiled_float(family: Family, graph: Graph, compiler: Compiler) -> CompiledModel:
    """A float model, compiled for the shapes of ``graph`` at once."""
    build = compiler.compile(graph)
    programs = programs_of(Built(family), Specialisation(graph, build), compiler)
    return CompiledModel(programs, lambda: report_of(build, {}))


def checked_report(build: Build, seconds: Mapping[str, float], found: Verification) -> Report:
    """The report of a build that was compared with the float model."""
    return replace(
        report_of(build, seconds),
        outputs=found.outputs,
        layers=found.layers,
        compared_with=found.compared_with,
        samples=found.samples,
        right=found.right,
        notes=found.notes,
    )
