"""Models that are compiled on first use: their shapes are known then."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from quantglow.quantization.qdq import float_notes
from quantglow.report import MemoryFigures, Report
from quantglow.report.report import report_of
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specialisations import ModelPrograms

Model = TypeVar("Model", bound=CompiledModel | FallbackModel)

ON_USE = "the model leaves dimensions free: it is compiled on first use"
FIRST = "all that is said here is said of the shapes that came first"


def compiled_on_use(programs: ModelPrograms, known: tuple[str, ...]) -> CompiledModel:
    """A model of which nothing is compiled yet; notes that are ``known`` already."""

    def report() -> Report:
        if programs.is_empty:
            empty = Report(programs.target, programs.num_threads, MemoryFigures(), {})
            return replace(empty, notes=(ON_USE, *known))
        found = programs.first
        notes = (ON_USE, FIRST, *known, *float_notes(found.graph))
        return replace(report_of(found.build, {}), notes=notes)

    return CompiledModel(programs, report)


def ready_to_answer(model: Model) -> Model:
    """The model; onnxruntime has loaded it if it answers calls while programs are compiled."""
    if isinstance(model, CompiledModel | PartlyCompiledModel):
        programs = model.specialisations
        if isinstance(programs, FreeShapes):
            programs.load_other()
    return model
