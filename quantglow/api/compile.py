"""``compile``: a graph or a model, as it is, to a program that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quantglow.api.models.fallback import compile_on_use, fallback_model, ready_to_answer
from quantglow.api.models.families import Built, first_of, open_family, settle, with_steps
from quantglow.api.models.other_ways import OtherWays
from quantglow.api.models.programs import build_programs
from quantglow.api.options import InputShapes, ModelOptions, OneModel, ProgramOptions
from quantglow.evaluation.report import Report, build_report
from quantglow.importer import model_as_onnx
from quantglow.importer.onnx import Source, open_model
from quantglow.ir.graph.family import Family, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.quantization.qdq import float_notes
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.programs.build import Compiler
from quantglow.support import debug
from quantglow.support.errors import FallbackError, UnsupportedOpError
from quantglow.support.options import (
    OBJECT,
    POSITIVE,
    choice_among,
    option,
    takes_options,
)
from quantglow.tuning.records import (
    TUNES,
    Tune,
    check_client,
    check_minutes,
    check_tune,
    with_records,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class CompileArguments(ProgramOptions, ModelOptions, OneModel):
    """The arguments of ``compile``."""

    tune: Tune | None = option(
        None,
        choice_among(TUNES).or_none(),
        '"records": kernels have the forms and tiles that were measured on this machine; '
        '"measure": those without a record are measured first, for ``max_minutes`` (default: 5).  '
        "Results are equal, bit for bit",
    )
    max_minutes: float | None = option(
        None, POSITIVE.or_none(), 'the time of tune="measure", in minutes'
    )
    client: Any = option(
        None,
        OBJECT,
        'with tune="measure": a ``dask.distributed.Client``, whose workers\' machines measure, '
        "each on one core at a time.  Choices of machines of this kind are used here; those of "
        "others are hints",
    )


@takes_options(CompileArguments)
def compile(options: CompileArguments) -> CompiledModel | FallbackModel:
    """Compile a graph (float or int8) or an ONNX model (float, or quantized already).

    onnxruntime computes the operators that quantglow does not compile; what is behind those that
    decide sizes, or compute with strings and sequences, is compiled, too, and so are the bodies of
    loops of computed trips.  Where each such size would need a program, onnxruntime computes what
    has it.  It runs a model whole of which nothing can be compiled: that is a ``FallbackModel``,
    which has the methods of ``CompiledModel``; ``new_state`` and ``export_bundle`` raise
    ``OptionError``.

    Raises ``ModelError`` for what is no model, ``OptionError`` and ``BackendError`` for options.
    """
    tune, input_shapes = options.tune, options.input_shapes
    compiler = options.compiler
    check_tune(tune, options.backend)
    max_minutes = check_minutes(options.max_minutes, tune)
    client = check_client(options.client, tune)
    model = with_steps(model_as_onnx(options.model, options.samples), options.before, options.after)
    source = None if isinstance(model, Graph) else settle(open_model(model), model)

    def compiled_by(compiler: Compiler) -> CompiledModel | FallbackModel:
        if source is None:
            return _compile_family(open_family(model), compiler)
        return ready_to_answer(compile_source(source, input_shapes, compiler))

    if tune == "measure":
        # Only here: most programs are compiled without it.
        from quantglow.tuning.networks import tune_network

        tuning = tune_network(compiled_by(compiler), compiler, max_minutes, client=client)
        return compiled_by(tuning.compiler)
    return compiled_by(with_records(compiler) if tune else compiler)


def compile_source(
    source: Source, input_shapes: InputShapes | None, compiler: Compiler
) -> CompiledModel | FallbackModel:
    """Compile a model, or as much of it as can be compiled; onnxruntime runs the rest."""

    def attempt(late_results: LateResults) -> CompiledModel:
        family = open_family(source, input_shapes, late_results)
        return _compile_family(family, compiler, source)

    try:
        return first_of(attempt)
    except (UnsupportedOpError, FallbackError) as error:
        return fallback_model(source, error, compiler.num_threads)


def _compile_family(
    family: Family, compiler: Compiler, source: Source | None = None
) -> CompiledModel:
    """Compile for the shapes that are fixed, or with batch 1; where others are free, nothing yet.

    ``source``: the model, which onnxruntime runs at shapes for which it cannot be compiled.
    """
    seconds: dict[str, float] = {}
    with debug.time_stage("import", seconds):
        graph = family.default
    whole = OtherWays(source, compiler, family.late_results) if source else None
    if graph is None:
        return compile_on_use(build_programs(Built(family), compiler, whole), family.notes)
    programs = build_programs(Built(family), compiler, whole, graph)
    notes = (*family.notes, *float_notes(graph))

    def report() -> Report:  # a loop that has run tells what it leaves to onnxruntime
        return replace(build_report(programs.first.build, seconds), notes=notes)

    return CompiledModel(programs, report)
