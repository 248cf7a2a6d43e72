"""Models handed to onnxruntime, and models compiled on first use.

onnxruntime runs a whole model, or what cannot be compiled behind a part that can.  A model that
leaves dimensions free is compiled on first use, when its shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from quantglow.evaluation.report import MemoryFigures, Report, build_report
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.importer.onnx import Source, Split, node_reason, reasons, weights_nbytes
from quantglow.ort.fallback import FallbackNode, whole_model
from quantglow.ort.session import NAME, open_session
from quantglow.quantization.qdq import float_notes
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.hybrid.tails import StagedTail
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import ModelPrograms
from quantglow.support.errors import FallbackError, ModelError, QuantglowError, UnsupportedOpError

Model = TypeVar("Model", bound=CompiledModel | FallbackModel)

ON_USE = "the model leaves dimensions free: it is compiled on first use"
FIRST = "all that is said here is said of the shapes that came first"

NOTHING_COMPILED = (
    "nothing of this model is compiled and nothing is int8: onnxruntime runs it as it is"
)

AnyFallback = TypeVar("AnyFallback", bound=FallbackModel)


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
    if isinstance(model, CompiledModel | PartlyCompiledModel):
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
        return load(fallback)
    except FallbackError as refusal:
        raise error from refusal


def _all_reasons(source: Source, error: QuantglowError) -> tuple[str, ...]:
    """Reasons of the error, and of nodes that would run in onnxruntime anyway."""
    every = list(error.reasons)
    with suppress(ModelError):
        every += reasons(source) if isinstance(error, UnsupportedOpError) else ()
    return tuple(dict.fromkeys(every))


def partly_compiled(
    source: Source,
    parts: Split,
    head: CompiledModel,
    error: QuantglowError,
    staged: StagedTail | None = None,
) -> PartlyCompiledModel:
    """The compiled head of a model, and its tail in onnxruntime, or ``staged``.

    Raises ``FallbackError``.
    """
    tail, tail_nbytes = tail_nodes(parts), weights_nbytes(parts.tail)

    def report() -> Report:
        first = head.report
        behind, programs = (staged.fallback, staged.served) if staged else (tail, ())
        return replace(
            first,
            weights=first.weights and first.weights.with_tail(tail_nbytes, _sizes_in(staged)),
            fallback=(*first.fallback, *behind),
            programs=(*first.programs, *programs),
            notes=(*first.notes, *(staged.notes if staged else [])),
        )

    return load(
        PartlyCompiledModel(
            source.serialize(),
            error.reasons,
            head.specialisations.num_threads,
            report,
            head,
            parts.tail.SerializeToString(),
            tuple(output.name for output in source.proto.graph.output),
            staged,
        )
    )


def _sizes_in(staged: StagedTail | None) -> WeightSizes | None:
    """The sizes of weights in the int8 part of a tail."""
    return staged.suffix.report.weights if staged and staged.is_int8 and staged.suffix else None


def check_tail(parts: Split, threads: int) -> None:
    """Raise ``FallbackError`` if onnxruntime does not load the tail."""
    open_session(parts.tail.SerializeToString(), threads)


def tail_nodes(parts: Split) -> tuple[FallbackNode, ...]:
    """The operators behind the cut."""
    return nodes_in(parts.tail.graph.node, parts.reasons)


def nodes_in(nodes: Iterable[Any], why: Sequence[str]) -> tuple[FallbackNode, ...]:
    """The operators of a tail, or of a part of it; ``why``: the reasons of the cut."""
    return tuple(
        FallbackNode(next(filter(None, node.output)), node.op_type, NAME, node_reason(node, why))
        for node in nodes
        if node.op_type != "Constant"
    )


def load(model: AnyFallback) -> AnyFallback:
    """The model with its session, loaded here so that it fails here: ``FallbackError``."""
    model.session  # noqa: B018
    return model
