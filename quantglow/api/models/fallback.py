"""Models handed to onnxruntime, and models compiled on first use.

A model that leaves dimensions free is compiled on first use, when its shapes are known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from quantglow.evaluation.report import MemoryFigures, Report, build_report
from quantglow.importer.onnx import Source
from quantglow.ort.fallback import whole_model
from quantglow.ort.session import NAME
from quantglow.quantization.qdq import float_notes
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import ModelPrograms
from quantglow.support.errors import FallbackError, ModelError, QuantglowError, UnsupportedOpError

Model = TypeVar("Model", bound=CompiledModel | FallbackModel)

ON_USE = "the model leaves dimensions free: it is compiled on first use"
FIRST = "all that is said here is said of the shapes that came first"

NOTHING_COMPILED = (
    "nothing of this model is compiled and nothing is int8: onnxruntime runs it as it is"
)


def compile_on_use(programs: ModelPrograms, import_notes: tuple[str, ...]) -> CompiledModel:
    """A model of which nothing is compiled yet; ``import_notes`` are those of the import."""

    def report() -> Report:
        if programs.is_empty:
            empty = Report(programs.target, programs.num_threads, MemoryFigures(), {})
            return replace(empty, notes=(ON_USE, *import_notes))
        build = programs.first
        notes = (ON_USE, FIRST, *import_notes, *float_notes(build.graph))
        return replace(build_report(build.build, {}), notes=notes)

    return CompiledModel(programs, report)


def ready_to_answer(model: Model) -> Model:
    """The model; onnxruntime has loaded it if it answers calls while programs are compiled."""
    if isinstance(model, CompiledModel):
        programs = model.specialisations
        if isinstance(programs, FreeShapes):
            programs.load_other()
    return model


def fallback_model(source: Source, error: QuantglowError, threads: int) -> FallbackModel:
    """The model in onnxruntime; ``error`` says why it is not compiled.

    Raises ``error`` with onnxruntime's message as its cause if onnxruntime does not take it either.
    """
    every_reason = _all_reasons(source, error)
    report = Report(
        NAME,
        threads,
        MemoryFigures(),
        {},
        notes=(NOTHING_COMPILED,),
        fallback=whole_model(every_reason),
    )
    fallback = FallbackModel(source.serialize(), every_reason, threads, lambda: report)
    try:
        fallback.session  # noqa: B018 - loaded here so that it fails here
    except FallbackError as refusal:
        raise error from refusal
    return fallback


def _all_reasons(source: Source, error: QuantglowError) -> tuple[str, ...]:
    """Reasons of the error, and of nodes that would run in onnxruntime anyway."""
    every = list(error.reasons)
    with suppress(ModelError):
        every += source.reasons if isinstance(error, UnsupportedOpError) else ()
    return tuple(dict.fromkeys(every))
