"""``compile``: a graph or a model, as it is, to a program that runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from quantglow.api.models.fallback import (
    compiled_on_use,
    fallback_model,
    partly_compiled,
    ready_to_answer,
)
from quantglow.api.models.families import (
    Built,
    InputShapes,
    family_of,
    programs_of,
    settled,
    with_steps,
)
from quantglow.api.models.parts import ModelFallback, staged_tail
from quantglow.evaluation.report import report_of
from quantglow.importer import model_as_onnx
from quantglow.importer.onnx import Source, open_model, split
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.quantization.options import Schedule
from quantglow.quantization.qdq import float_notes
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.programs.answers import AnswerLog, WhileCompiling
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.specializations import Specialisation
from quantglow.support import debug
from quantglow.support.arguments import options_named, shapes
from quantglow.support.errors import FallbackError, ModelError, UnsupportedOpError
from quantglow.transforms.partition import Backend
from quantglow.tuning.records import Tune, check_client, check_minutes, check_tune, with_records


@options_named()
def compile(
    model: Any,
    target: str = "native",
    num_threads: int | None = None,
    *,
    input_shapes: InputShapes | None = None,
    backend: str = "llvm",
    backends: Sequence[Backend] = (),
    schedule: Schedule = "fast",
    samples: Any = None,
    before: Any = None,
    after: Any = None,
    tune: Tune | None = None,
    max_minutes: float | None = None,
    while_compiling: WhileCompiling = "wait",
    client: Any = None,
) -> CompiledModel | FallbackModel:
    """Compile a graph (float or int8) or an ONNX model (float, or quantized already).

    onnxruntime computes the operators that quantglow does not compile.  Where shapes stop being
    known before a run, it computes the operators that decide them, and all that comes behind where
    that has no products or recurrences (``PartlyCompiledModel``); it runs a model whole of which
    nothing can be compiled (``FallbackModel``).  Both have the methods of ``CompiledModel``;
    ``new_state`` and ``export_bundle``, which need a model that is compiled whole, raise
    ``OptionError``.

    Raises ``ModelError`` for what is no model, ``OptionError`` and ``BackendError`` for options.

    target        "native"; "portable", code without instructions of a particular processor; or
                  another of ``quantglow.codegen.llvm.targets.LEVELS``
    num_threads   None: one for each physical core
    input_shapes  fixes the shapes of inputs that the model leaves free; without it the model
                  serves all of them, compiled on first use
    backend       "llvm", or "reference": the same program in NumPy
    backends      code generators of your own, see ``Backend``; they are asked first, in order
    schedule      "fast"; or "memory": the order of execution with the smallest arena, searched for
                  up to some seconds.  Results are equal
    samples       those on whose first one a model of PyTorch or scikit-learn is exported
    before, after steps of ``quantglow.steps`` that become part of the model: from the data that is
                  fed to its input, and from its output to the result; with several inputs or
                  outputs, a dict from name to steps
    tune          "records": kernels have the forms and tiles that were measured on this
                  machine; "measure": those without a record are measured first, for
                  ``max_minutes`` (default: 5).  Results are equal, bit for bit
    client        with tune="measure": a ``dask.distributed.Client``, whose workers' machines
                  measure, each on one core at a time.  Choices of machines of this kind are used
                  here; those of others are hints
    while_compiling  "onnxruntime": it answers calls at a shape whose program is still being
                  compiled, in a thread, so that no call waits for the compiler.  It runs the float
                  model: answers of an int8 model change when the program is ready.  ``answers`` of
                  the model counts both; an error of the compiler is raised by the next call at the
                  shape.  "wait": calls wait
    """
    answers = AnswerLog.of(while_compiling)
    compiler = Compiler.of(target, num_threads, backend, backends, schedule, answers=answers)
    check_tune(tune, backend)
    max_minutes = check_minutes(max_minutes, tune)
    client = check_client(client, tune)
    input_shapes = shapes("input_shapes", input_shapes)
    model = with_steps(model_as_onnx(model, samples), before, after)
    source = None if isinstance(model, Graph) else settled(open_model(model), model)

    def made(compiler: Compiler) -> CompiledModel | FallbackModel:
        if source is None:
            return compile_family(family_of(model), compiler)
        return ready_to_answer(compile_source(source, input_shapes, compiler))

    if tune == "measure":
        # Only here: most programs are compiled without it.
        from quantglow.tuning.networks import tune_network

        found = tune_network(made(compiler), compiler, max_minutes, client=client)
        return made(found.compiler)
    return made(with_records(compiler) if tune else compiler)


def compile_source(
    source: Source, input_shapes: InputShapes | None, compiler: Compiler
) -> CompiledModel | FallbackModel:
    """Compile a model, or as much of it as can be compiled; onnxruntime runs the rest."""
    try:
        return compile_family(family_of(source, input_shapes), compiler, source)
    except UnsupportedOpError as error:
        return compile_parts(source, input_shapes, compiler, error)
    except FallbackError as error:
        return fallback_model(source, error, compiler.num_threads)


def compile_parts(
    source: Source,
    input_shapes: InputShapes | None,
    compiler: Compiler,
    error: UnsupportedOpError,
) -> FallbackModel:
    """Compile what comes before the nodes that ``error`` names; onnxruntime runs the rest, or all
    of it where nothing does.
    """
    with suppress(ModelError, FallbackError):
        if (parts := split(source, input_shapes)) is not None:
            head = Source.of(parts.head)
            compiled = compile_family(family_of(head, input_shapes), compiler, head)
            staged = staged_tail(parts.tail, parts.late, parts.reasons, compiler)
            return partly_compiled(source, parts, compiled, error, staged)
    return fallback_model(source, error, compiler.num_threads)


def compile_family(
    family: Family, compiler: Compiler, source: Source | None = None
) -> CompiledModel:
    """Compile for the shapes that are fixed, or with batch 1; where others are free, nothing yet.

    ``source``: the model, which onnxruntime runs at shapes for which it cannot be compiled.
    """
    seconds: dict[str, float] = {}
    with debug.timed("import", seconds):
        graph = family.default
    whole = ModelFallback(source, compiler) if source else None
    if graph is None:
        return compiled_on_use(programs_of(Built(family), None, compiler, whole), family.notes)
    build = compiler.compile(graph)
    programs = programs_of(Built(family), Specialisation(graph, build), compiler, whole)
    notes = (*family.notes, *float_notes(graph))
    report = replace(report_of(build, seconds), notes=notes)
    return CompiledModel(programs, lambda: report)
